"""Structured output through the station: whatever the model would say, the output has the form."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from services.common.errors import InvalidArgument
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import GatedExecutor, running_engine, scripted
from tests.support.engines import default_tokenizer, saying, scripted_engine

EOS = 2
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def form(
    max_tokens: int = 50, *, ignore_eos: bool = False, min_tokens: int = 0, **fields
) -> engine_pb2.GenerateRequest:
    if "choice" in fields:
        fields["choice"] = common_pb2.StructuredChoices(texts=fields["choice"])
    return engine_pb2.GenerateRequest(
        prompt_ids=[5, 6, 7],
        stop=common_pb2.StopParams(max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=ignore_eos),
        structured_output=common_pb2.StructuredOutput(**fields),
    )


def text(got) -> str:
    return default_tokenizer().decode(got.token_ids)


async def test_the_output_has_the_form_and_ends_with_it():
    async with scripted_engine(saying('{"n": 12} and so on')) as engine:
        got = await engine.generate(form(json_schema=SCHEMA))
        assert (text(got), got.end.finish_reason) == ('{"n": 12}', common_pb2.FINISH_REASON_STOP)
        assert not got.end.HasField("stop_token_id"), "nothing could follow"
        got = await engine.generate(form(choice=["12 and", "7 or"]))
        assert text(got) == "12 and"
        got = await engine.generate(form(regex="[a-z]{1,4}"))
        assert text(got).isalpha()
        await engine.until_idle()


async def test_an_end_of_sequence_id_ends_it_where_the_form_is_complete():
    async with scripted_engine(saying("ab", finish=True)) as engine:
        got = await engine.generate(form(regex="(ab)+"))
        assert (text(got), got.end.stop_token_id) == ("ab", EOS)
        got = await engine.generate(form(regex="(ab){3}"))
        assert text(got) == "ababab"
        got = await engine.generate(form(regex="(ab)+", min_tokens=5, max_tokens=9))
        assert len(got.token_ids) >= 5
        got = await engine.generate(form(regex="(ab)+", ignore_eos=True, max_tokens=6))
        assert (len(got.token_ids), got.end.finish_reason) == (6, common_pb2.FINISH_REASON_LENGTH)


async def test_max_tokens_may_cut_it():
    async with scripted_engine(saying('{"n": 12}')) as engine:
        got = await engine.generate(form(json_schema=SCHEMA, max_tokens=3))
        assert (len(got.token_ids), got.end.finish_reason) == (3, common_pb2.FINISH_REASON_LENGTH)
        assert text(got) in '{"n": 12}'


async def test_what_cannot_be_followed_is_refused_before_any_token():
    refused = [
        ("structured_output", form()),
        ("structured_output.json_object", form(json_object=False)),
        ("structured_output.choice", form(choice=[])),
        ("structured_output.regex", form(regex="(" * 10)),
        ("structured_output.regex", form(regex="a" * (256 * 1024 + 1))),
        ("structured_output.grammar", form(grammar="nothing of the kind (")),
        ("structured_output.json_schema", form(json_schema='{"type": "array", "uniqueItems": true}')),
        ("structured_output.json_schema", form(json_schema="[]")),
    ]
    async with scripted_engine(saying("x")) as engine, framed_peer(engine) as peer:
        for handle, (param, message) in enumerate(refused):
            with pytest.raises(InvalidArgument) as caught:
                await engine.generate(message)
            assert caught.value.param == param
            assert (await peer.generate(handle, message).code()).name == "INVALID_ARGUMENT"
        assert not peer.by_handle
        assert (await engine.until_idle()).requests["grammars_pending"] == 0


async def test_a_model_whose_tokenizer_cannot_be_used_refuses_it():
    async with running_engine(scripted(1, 2)) as engine:
        with pytest.raises(InvalidArgument, match="not possible with this model's tokenizer"):
            await engine.generate(form(json_object=True))


async def test_a_form_that_becomes_too_complex_ends_its_own_request_alone():
    hard, plain = form(max_tokens=2000, regex="(.*[ab].{200}c){9}"), engine_pb2.GenerateRequest(prompt_ids=[1])
    plain.stop.max_tokens = 300
    async with scripted_engine(saying("abcab bcacb cbabb aacbc")) as engine:
        refused, got = await asyncio.gather(engine.generate(hard), engine.generate(plain), return_exceptions=True)
        assert isinstance(refused, InvalidArgument), refused
        assert refused.param == "structured_output.regex"
        assert len(got.token_ids) == 300
        await engine.until_idle()


async def test_a_form_that_fails_in_a_frame_names_its_field_there_too():
    endless = form(grammar='start: "a" start')  # compiles, and has no end
    async with scripted_engine(saying("x")) as engine, framed_peer(engine) as peer:
        with pytest.raises(grpc.aio.AioRpcError):
            await peer.generate(1, endless)
        end = await peer.end(1)
        assert (end.error.reason, end.error.param) == ("INVALID_ARGUMENT", "structured_output.grammar")
        await engine.until_idle()


async def test_forms_of_many_requests_at_once():
    texts = [f"item {n}" for n in range(12)]
    async with scripted_engine(saying("item 3, item 7")) as engine, framed_peer(engine) as peer:
        await asyncio.gather(*(peer.generate(n, form(choice=[text])) for n, text in enumerate(texts)))
        for handle, expected in enumerate(texts):
            await peer.end(handle)
            assert text(peer.by_handle[handle]) == expected
        await engine.until_idle()


async def test_an_aborted_request_leaves_nothing():
    executor = GatedExecutor(saying("abc"))
    async with scripted_engine(executor) as engine:
        call = engine.stub.Generate(form(regex="[a-z]+"))
        await executor.step_entered()
        call.cancel()
        await engine.until_handlers_gone()
        executor.allow()
        await engine.until_idle()


async def test_the_log_tells_the_wait_for_the_grammar():
    async with scripted_engine(saying("ab")) as engine:
        await engine.generate(form(regex="ab"))
        await engine.generate(engine_pb2.GenerateRequest(prompt_ids=[1], stop=common_pb2.StopParams(max_tokens=1)))
        await engine.until_idle()
        waits = [entry.get("grammar_wait_ms") for entry in engine.request_logs()]
        assert waits[0] > 0
        assert waits[1] is None
        assert engine.registry.get_sample_value("postroad_request_grammar_time_seconds_count") == 1
