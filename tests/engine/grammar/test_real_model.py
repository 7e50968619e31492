"""Schemas of every shape, followed by the real model at temperature 1: what it finishes is valid."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import structlog

from services.engine.settings import EngineSettings
from services.engine.startup import load_engine
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.grammar.schemas import SCHEMAS
from tests.engine.running_engine import Generated, RunningEngine, running_engine
from tests.support.engines import default_tokenizer

PROMPT = "<|im_start|>user\nAnswer in JSON.<|im_end|>\n<|im_start|>assistant\n"


def request(seed: int, schema: object) -> engine_pb2.GenerateRequest:
    return engine_pb2.GenerateRequest(
        prompt_ids=default_tokenizer().encode(PROMPT).ids,
        sampling=common_pb2.SamplingParams(temperature=1, seed=seed),
        stop=common_pb2.StopParams(max_tokens=300),
        structured_output=common_pb2.StructuredOutput(json_schema=json.dumps(schema)),
    )


async def all_outputs(engine: RunningEngine) -> list[Generated]:
    return await asyncio.gather(*(engine.generate(request(seed, schema)) for seed, schema in enumerate(SCHEMAS)))


async def test_fifty_schemas_and_their_outputs():
    assert len(SCHEMAS) == 50
    settings = EngineSettings(num_pages=2048, metrics_port=0)
    log = structlog.get_logger()
    async with running_engine(load=lambda publish: load_engine(settings, publish, log)) as engine:
        outputs = await all_outputs(engine)
        for schema, output in zip(SCHEMAS, outputs, strict=True):
            text = default_tokenizer().decode(output.token_ids)
            assert output.end is not None
            assert output.end.finish_reason == common_pb2.FINISH_REASON_STOP, (schema, text)
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
        # Alone, and with the masks computed once more: the same tokens.
        for seed in (0, 22, 40):
            again = await engine.generate(request(seed, SCHEMAS[seed]))
            assert again.token_ids == outputs[seed].token_ids
        await engine.until_idle()
