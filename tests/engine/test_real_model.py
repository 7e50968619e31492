"""The station with the default model's weights."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from tokenizers import Tokenizer

from services.engine.settings import EngineSettings
from services.engine.startup import StartupError, load_engine
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import running_engine
from tests.support.engines import default_files
from tests.support.models import tiny_model_folder

LOG = structlog.get_logger()
GREEDY = common_pb2.SamplingParams(temperature=0)


def greedy(prompt_ids, max_tokens):
    stop = common_pb2.StopParams(max_tokens=max_tokens)
    return engine_pb2.GenerateRequest(prompt_ids=prompt_ids, sampling=GREEDY, stop=stop)


async def test_greedy_answers_are_sensible_and_the_same_alone_together_and_framed():
    settings = EngineSettings(dtype="float32", threads=1, num_pages=256, metrics_port=0)
    tokenizer = Tokenizer.from_buffer(default_files().tokenizer_files["tokenizer.json"])
    texts = ["The capital of France is", "Two, four, six,", "def add(a, b):\n    return"]
    prompts = [tokenizer.encode(text).ids for text in texts]
    async with running_engine(load=lambda publish: load_engine(settings, publish, LOG)) as engine:
        model = await engine.stub.GetModel(engine_pb2.GetModelRequest())
        assert (model.model, model.max_model_len) == ("SmolLM2-135M-Instruct", 256 * 16)
        alone = [(await engine.generate(greedy(prompt, 6))).token_ids for prompt in prompts]
        answers = [tokenizer.decode(ids) for ids in alone]
        assert "Paris" in answers[0]
        assert "eight" in answers[1]
        assert "a + b" in answers[2]
        async with framed_peer(engine) as peer:
            await asyncio.gather(*(peer.generate(i, greedy(prompt, 6)) for i, prompt in enumerate(prompts)))
            for handle, ids in enumerate(alone):
                await peer.end(handle)
                assert peer.by_handle[handle].token_ids == ids
        await engine.until_idle()


def test_a_length_beyond_the_model_s_is_refused(tmp_path):
    settings = EngineSettings(executor="scripted", max_model_len=8193)
    with pytest.raises(StartupError, match="8193 is more than the model's 8192"):
        load_engine(settings, lambda model: None, LOG)


def test_the_kv_pool_s_memory_decides_over_its_pages_and_these_over_the_length(tmp_path):
    folder = tiny_model_folder(tmp_path, "LlamaForCausalLM")
    page_bytes = 2 * 3 * 16 * 2 * 16 * 4  # keys and values, layers, tokens, KV heads, elements, float32
    flags = {"model": str(folder), "dtype": "float32", "threads": 1}
    published = []
    core = load_engine(EngineSettings(kv_cache_memory=page_bytes * 5 + 1, **flags), published.append, LOG)
    assert (core.info.num_pages, core.info.max_model_len) == (5, 80)
    assert published[0].name == folder.name
    core.close()
    with pytest.raises(StartupError, match="do not hold one page"):
        load_engine(EngineSettings(kv_cache_memory=page_bytes - 1, **flags), published.append, LOG)


def test_the_name_that_clients_see():
    published = []
    load_engine(EngineSettings(executor="scripted", served_model_name="mine"), published.append, LOG)
    assert published[0].name == "mine"
