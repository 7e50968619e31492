"""Tokens with log-probabilities keep in step with the text, however it is held back and cut."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.detokenizer.decode import DecoderFactory, make_decoder_factory, read_vocabulary
from services.detokenizer.pipeline import TextPipeline
from services.detokenizer.scored_tokens import MissingLogprobs, ScoredPipeline
from services.detokenizer.stop import StopMatcher
from services.detokenizer.token_texts import TokenTexts
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2
from tests.detokenizer.client import Answer, generate, request
from tests.detokenizer.test_service import TEXT, TRANSPORTS, ids_of
from tests.support.engines import address, default_tokenizer, saying, scripted_engine
from tests.support.stations import running_detokenizer

HALF = math.log(0.5)
IM_END = 2


@pytest.fixture(scope="module")
def make_decoder(smollm2: Tokenizer) -> DecoderFactory:
    return make_decoder_factory(smollm2)


@pytest.fixture(scope="module")
def texts(smollm2: Tokenizer) -> TokenTexts:
    return TokenTexts(read_vocabulary(smollm2))


def scores_of(token_ids: Sequence[int]) -> common_pb2.TokenLogprobs:
    """Logprob -1, -2, … and no alternatives."""
    logprobs = [-1.0 - index for index in range(len(token_ids))]
    return common_pb2.TokenLogprobs(logprobs=logprobs, ranks=[1] * len(logprobs))


def make(
    make_decoder: DecoderFactory, texts: TokenTexts, stops: Sequence[str] = (), include: bool = False
) -> ScoredPipeline:
    pipeline = TextPipeline(make_decoder([], skip_special_tokens=True), StopMatcher(stops, include))
    return ScoredPipeline(pipeline, texts)


def assert_in_step(tokens: list[detokenizer_pb2.TextToken], text: str, *, cut: bool) -> None:
    """The tokens' bytes are the text's, or go beyond a text that was cut by less than the last token."""
    data = b"".join(token.bytes for token in tokens)
    if not cut:
        assert data.decode("utf-8", "replace") == text
    else:
        assert data.startswith(text.encode())
        assert len(data) - len(tokens[-1].bytes) < len(text.encode()) if tokens else text == ""
    before = b""
    for token in tokens:
        assert token.text_offset == len(codecs.utf_8_decode(before, "replace", False)[0])
        before += token.bytes


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("ab \n日é😀"), max_size=25),
    stops=st.lists(st.text(st.sampled_from("ab 日😀"), min_size=1, max_size=4), max_size=3),
    cut=st.tuples(st.booleans(), st.integers(1, 5)),
)
def test_shown_tokens_are_those_of_the_shown_text(
    make_decoder: DecoderFactory,
    texts: TokenTexts,
    text: str,
    stops: list[str],
    cut: tuple[bool, int],
) -> None:
    """`cut`: whether a matched stop string is shown, and the tokens per push."""
    include, step = cut
    token_ids = default_tokenizer().encode(text, add_special_tokens=False).ids
    pipeline = make(make_decoder, texts, stops, include)
    shown, tokens, matched, count = "", [], None, 0
    for start in range(0, len(token_ids), step):
        part = token_ids[start : start + step]
        output = pipeline.push(part, scores_of(token_ids[: start + len(part)][-len(part) :]))
        shown, matched, count = shown + output.text, output.matched, count + output.num_tokens
        tokens += pipeline.take()
        assert all(token.text_offset < len(shown) for token in tokens)
        if matched is not None:
            break
    if matched is None:
        shown += pipeline.finish(None, None)
        tokens += pipeline.take()
        assert len(tokens) == len(token_ids)
    assert [token.id for token in tokens] == token_ids[: len(tokens)]
    assert_in_step(tokens, shown, cut=matched is not None)
    assert count == len(token_ids) or matched is not None


def test_the_stop_token_stands_at_the_end_though_it_is_no_text(make_decoder: DecoderFactory, texts: TokenTexts) -> None:
    token_ids = ids_of(" hello")
    pipeline = make(make_decoder, texts)
    assert pipeline.push(token_ids, scores_of([*token_ids, IM_END])).text == " hello"
    assert pipeline.finish(IM_END, scores_of([*token_ids, IM_END])) == ""
    tokens = pipeline.take()
    assert [(t.id, t.token, t.text_offset) for t in tokens] == [(token_ids[0], " hello", 0), (IM_END, "<|im_end|>", 6)]
    assert pipeline.cumulative_logprob == -3.0


def test_a_token_without_a_score_is_an_error(make_decoder: DecoderFactory, texts: TokenTexts) -> None:
    with pytest.raises(MissingLogprobs):
        make(make_decoder, texts).push(ids_of(" a b"), scores_of([1]))


def tokens_of(answer: Answer) -> list[detokenizer_pb2.TextToken]:
    return [token for delta in answer.deltas for token in delta.tokens]


def prompt_tokens_of(answer: Answer) -> list[detokenizer_pb2.TextToken]:
    return [token for delta in answer.deltas for token in delta.prompt_tokens]


def scored(prompt: Sequence[int] = (1, 2, 3), *, params: Any = None, echo: bool = False, **wanted: int) -> Any:
    message = request(prompt, params=params, echo=echo)
    for name, value in wanted.items():
        setattr(message.request, name, value)
    return message


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_scores_through_both_transports(transport: Any) -> None:
    ids = ids_of(TEXT)
    async with (
        scripted_engine(saying(TEXT)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        message = scored(params={"max_tokens": len(ids)}, logprobs=2, prompt_logprobs=1)
        answer = await generate(station.stub, message)
        tokens = tokens_of(answer)
        assert answer.text == TEXT
        assert [token.id for token in tokens] == ids
        assert_in_step(tokens, TEXT, cut=False)
        assert all(token.logprob == pytest.approx(HALF) and token.rank == 1 for token in tokens)
        assert [[top.id for top in token.top] for token in tokens] == [[i, i + 1] for i in ids]
        assert answer.end.cumulative_logprob == pytest.approx(HALF * len(ids))
        prompt = prompt_tokens_of(answer)
        assert [(t.id, t.HasField("logprob"), len(t.top)) for t in prompt] == [
            (1, False, 0),
            (2, True, 1),
            (3, True, 1),
        ]
        plain = await generate(station.stub, request(params={"max_tokens": len(ids)}))
        assert (plain.text, tokens_of(plain), prompt_tokens_of(plain)) == (TEXT, [], [])
        assert not plain.end.HasField("cumulative_logprob")
        await station.until_idle()
        await engine.until_idle()


async def test_echo_puts_the_prompt_first_and_characters_that_it_begins_are_whole() -> None:
    ids, output = ids_of(" Say 日本語"), ids_of(" x") * 2
    async with scripted_engine(saying(" x")) as engine, running_detokenizer(address(engine)) as station:
        for cut in range(1, len(ids) + 1):
            message = scored(ids[:cut], params={"max_tokens": 2}, echo=True, prompt_logprobs=0, logprobs=0)
            answer = await generate(station.stub, message)
            assert answer.text == default_tokenizer().decode(ids[:cut] + output)
            tokens = prompt_tokens_of(answer) + tokens_of(answer)
            assert [token.id for token in tokens] == ids[:cut] + output
            assert_in_step(tokens, answer.text, cut=False)
    async with scripted_engine(saying("語, 😀!")) as engine, running_detokenizer(address(engine)) as station:
        halved = ids_of(" Say 日")[:-1]
        answer = await generate(station.stub, scored(halved, params={"max_tokens": 9}, echo=True, logprobs=0))
        assert answer.text == default_tokenizer().decode([*halved, *ids_of("語, 😀!") * 9][: len(halved) + 9])


async def test_fieldbug_16_echo_without_output() -> None:
    ids = ids_of(" Say 日本 <|im_end|> again")
    async with scripted_engine(saying(" x")) as engine, running_detokenizer(address(engine)) as station:
        answer = await generate(station.stub, scored(ids, params={"max_tokens": 0}, echo=True, prompt_logprobs=1))
        assert answer.text == default_tokenizer().decode(ids)
        assert len(answer.deltas) == 1
        assert [token.id for token in prompt_tokens_of(answer)] == ids
        assert answer.end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert answer.end.usage.completion_tokens == 0
        halved = ids_of("日")[:1]
        assert (await generate(station.stub, scored(halved, params={"max_tokens": 0}, echo=True))).text == "\ufffd"
        assert (await generate(station.stub, scored(ids, params={"max_tokens": 0}))).text == ""
        await station.until_idle()


async def test_a_long_prompt_s_scores_come_in_several_messages() -> None:
    ids = ids_of(" word")[:1] * 1500
    async with scripted_engine(saying(" x")) as engine, running_detokenizer(address(engine)) as station:
        answer = await generate(station.stub, scored(ids, params={"max_tokens": 1}, echo=True, prompt_logprobs=0))
        assert [len(delta.prompt_tokens) for delta in answer.deltas] == [1024, 476]
        assert [token.text_offset for token in prompt_tokens_of(answer)] == list(range(0, 7500, 5))
        assert answer.text == " word" * 1500 + " x"
