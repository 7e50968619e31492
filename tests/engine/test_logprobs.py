"""Log-probabilities over both forms of the contract."""

from __future__ import annotations

import asyncio
import math

import pytest

from services.common.errors import ContextLengthExceeded, InvalidArgument
from services.engine.scheduler.config import SchedulerConfig
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import EOS, INFO, request, running_engine, scripted

HALF = math.log(0.5)


def scored(message: engine_pb2.GenerateRequest, **wanted: int) -> engine_pb2.GenerateRequest:
    message.MergeFrom(engine_pb2.GenerateRequest(**wanted))
    return message


def assert_scores(scores: common_pb2.TokenLogprobs, token_ids: list[int], num_top: int) -> None:
    """Those that the scripted executor makes up."""
    assert list(scores.logprobs) == pytest.approx([HALF] * len(token_ids))
    assert list(scores.ranks) == [1] * len(token_ids)
    assert list(scores.top_ids) == [token_id + place for token_id in token_ids for place in range(num_top)]
    assert len(scores.top_logprobs) == len(scores.top_ids)


async def test_logprobs_go_with_the_tokens():
    async with running_engine(scripted(10, 11, EOS)) as engine:
        got = await engine.generate(scored(request(), logprobs=2))
        assert got.token_ids == [10, 11, EOS]
        assert (list(got.logprobs.ranks), list(got.logprobs.top_ids[:4])) == ([1, 1, 1], [10, 11, 11, 12])
        assert not got.prompt_logprobs.logprobs
        chosen_only = await engine.generate(scored(request(), logprobs=0))
        assert_scores(chosen_only.logprobs, chosen_only.token_ids, 0)
        none = await engine.generate(request())
        assert not none.logprobs.logprobs


async def test_prompt_logprobs_come_before_the_first_token_in_as_many_parts_as_the_prefill_has():
    config = SchedulerConfig(max_batch_tokens=8, max_num_seqs=8)
    async with running_engine(scripted(10, 11), config=config) as engine:
        prompt = list(range(100, 130))
        got = await engine.generate(scored(request(prompt, max_tokens=2), prompt_logprobs=3, logprobs=1))
        assert_scores(got.prompt_logprobs, prompt[1:], 3)
        assert_scores(got.logprobs, [10, 11], 1)
        await engine.until_idle()


async def test_fieldbug_16_max_tokens_0_computes_the_prompt_and_ends_by_length():
    async with running_engine(scripted(10)) as engine:
        got = await engine.generate(scored(request([5, 6, 7], max_tokens=0), prompt_logprobs=0))
        assert got.token_ids == []
        assert_scores(got.prompt_logprobs, [6, 7], 0)
        assert got.end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert (got.end.usage.prompt_tokens, got.end.usage.completion_tokens) == (3, 0)
        assert not (await engine.generate(request([5], max_tokens=0))).token_ids
        longest = await engine.generate(request([1] * INFO.max_model_len, max_tokens=0))
        assert longest.end.usage.prompt_tokens == INFO.max_model_len
        with pytest.raises(ContextLengthExceeded):
            await engine.generate(request([1] * (INFO.max_model_len + 1), max_tokens=0))
        await engine.until_idle()


async def test_framed_requests_get_their_own_scores_and_the_others_none():
    async with running_engine(scripted(*range(10, 20)), config=SchedulerConfig(max_num_seqs=8)) as engine:
        async with framed_peer(engine) as peer:
            wanted = [None, 0, 3, 20, None, 1]
            messages = [request([50 + i, 60 + i], max_tokens=2 + i) for i in range(len(wanted))]
            for message, num_top in zip(messages, wanted, strict=True):
                if num_top is not None:
                    scored(message, logprobs=num_top, prompt_logprobs=num_top)
            await asyncio.gather(*(peer.generate(i, message) for i, message in enumerate(messages)))
            for handle, num_top in enumerate(wanted):
                await peer.end(handle)
                got = peer.by_handle[handle]
                assert got.token_ids == list(range(10, 12 + handle))
                if num_top is None:
                    assert not got.logprobs.ByteSize()
                    assert not got.prompt_logprobs.ByteSize()
                else:
                    assert_scores(got.logprobs, got.token_ids, num_top)
                    assert_scores(got.prompt_logprobs, [60 + handle], num_top)
        await engine.until_idle()


async def test_a_framed_request_without_tokens_to_generate():
    async with running_engine(scripted(10)) as engine, framed_peer(engine) as peer:
        response = await peer.generate(3, scored(request([5, 6], max_tokens=0), prompt_logprobs=1))
        end = await peer.end(3)
        assert response.end == end
        assert peer.by_handle[3].start is None
        assert_scores(peer.by_handle[3].prompt_logprobs, [6], 1)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
async def test_more_alternatives_than_20_are_refused(field):
    async with running_engine(scripted(10)) as engine:
        with pytest.raises(InvalidArgument, match=rf"{field} must be at least 0 and at most 20, not 21") as raised:
            await engine.generate(scored(request(), **{field: 21}))
        assert raised.value.param == field
