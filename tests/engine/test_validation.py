"""Every field of a GenerateRequest: what is taken, what is refused and by which name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.errors import ContextLengthExceeded, InvalidArgument, PostroadError
from services.engine.validation import MIN_REPETITION_PENALTY, ModelLimits, sequence_from_request
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.running_engine import request, running_engine, scripted

LIMITS = ModelLimits(max_model_len=100, vocab_size=50, eos_token_ids=frozenset({2, 3}))


def parse(message):
    return sequence_from_request(message, LIMITS, sequence_id=1, arrival_ns=0)


def sampling(**fields):
    return engine_pb2.GenerateRequest(prompt_ids=[1], sampling=common_pb2.SamplingParams(**fields))


@pytest.mark.parametrize(
    ("param", "message"),
    [
        pytest.param("prompt_ids", request([]), id="fieldbug_15_empty_prompt"),
        pytest.param("prompt_ids", request([1, 50]), id="fieldbug_13_prompt_id_out_of_vocabulary"),
        pytest.param("prompt_ids", request([2**32 - 1]), id="fieldbug_13_largest_prompt_id"),
        pytest.param("temperature", sampling(temperature=-0.1)),
        pytest.param("temperature", sampling(temperature=2.1)),
        pytest.param("temperature", sampling(temperature=math.nan)),
        pytest.param("temperature", sampling(temperature=math.inf)),
        pytest.param("top_p", sampling(top_p=0)),
        pytest.param("top_p", sampling(top_p=1.1)),
        pytest.param("top_p", sampling(top_p=math.nan)),
        pytest.param("min_p", sampling(min_p=-0.1)),
        pytest.param("min_p", sampling(min_p=1.1)),
        pytest.param("min_p", sampling(min_p=math.nan)),
        pytest.param("presence_penalty", sampling(presence_penalty=2.1)),
        pytest.param("presence_penalty", sampling(presence_penalty=-math.inf)),
        pytest.param("frequency_penalty", sampling(frequency_penalty=-2.1)),
        pytest.param("frequency_penalty", sampling(frequency_penalty=math.nan)),
        pytest.param("repetition_penalty", sampling(repetition_penalty=0)),
        pytest.param("repetition_penalty", sampling(repetition_penalty=1e-38)),
        pytest.param("repetition_penalty", sampling(repetition_penalty=0.0099)),
        pytest.param("repetition_penalty", sampling(repetition_penalty=10.1)),
        pytest.param("repetition_penalty", sampling(repetition_penalty=math.nan)),
        pytest.param("logit_bias", sampling(logit_bias={50: 1.0}), id="logit_bias_out_of_vocabulary"),
        pytest.param("logit_bias", sampling(logit_bias={1: 100.5})),
        pytest.param("logit_bias", sampling(logit_bias={1: math.nan})),
        pytest.param("logit_bias", sampling(logit_bias=dict.fromkeys(range(1025), 0.0)), id="logit_bias_too_many"),
        pytest.param("min_tokens", request(max_tokens=0, min_tokens=1), id="min_tokens_beyond_max_tokens_0"),
        pytest.param("min_tokens", request(max_tokens=4, min_tokens=5)),
        pytest.param("min_tokens", request([1] * 90, min_tokens=11), id="min_tokens_beyond_what_fits"),
        pytest.param("stop_token_ids", request(stop_token_ids=[50]), id="fieldbug_14_stop_id_out_of_vocabulary"),
        pytest.param("stop_token_ids", request(stop_token_ids=[1] * 65), id="too_many_stop_ids"),
        pytest.param("cache_salt", engine_pb2.GenerateRequest(prompt_ids=[1], cache_salt="é" * 129)),
        pytest.param("priority", engine_pb2.GenerateRequest(prompt_ids=[1], priority=101)),
        pytest.param("priority", engine_pb2.GenerateRequest(prompt_ids=[1], priority=-101)),
        pytest.param("num_speculative_tokens", engine_pb2.GenerateRequest(prompt_ids=[1], num_speculative_tokens=17)),
    ],
)
def test_refused(param, message):
    with pytest.raises(InvalidArgument) as raised:
        parse(message)
    assert raised.value.param == param
    assert param.split("_")[0] in raised.value.message


def test_defaults():
    sequence = parse(engine_pb2.GenerateRequest(prompt_ids=[1, 2]))
    params = sequence.sampling
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert not params.has_penalties
    assert params.logit_bias == {}
    assert sequence.stop.max_tokens == 98
    assert sequence.stop.min_tokens == 0
    assert sequence.stop.stop_token_ids == {2, 3}
    assert (sequence.cache_salt, sequence.priority) == ("", 0)


@pytest.mark.parametrize(("setting", "given", "expected"), [(0, None, 0), (5, None, 5), (5, 0, 0), (0, 16, 16)])
def test_speculation_is_the_requests_or_the_engines(setting, given, expected):
    limits = replace(LIMITS, num_speculative_tokens=setting)
    message = engine_pb2.GenerateRequest(prompt_ids=[1], num_speculative_tokens=given)
    speculation = sequence_from_request(message, limits, 1, 0).speculation
    assert (speculation.max_guesses if speculation is not None else 0) == expected


def test_a_seed_is_drawn_where_none_is_given_and_zero_is_one():
    assert parse(sampling(seed=0)).sampling.seed == 0
    assert len({parse(sampling()).sampling.seed for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_p", 2.0**-126),
        ("min_p", 1),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("repetition_penalty", 10),
        ("repetition_penalty", MIN_REPETITION_PENALTY),
        ("seed", 2**64 - 1),
    ],
)
def test_the_ends_of_ranges_are_taken_as_they_are(field, value):
    assert getattr(parse(sampling(**{field: value})).sampling, field) == value


def test_top_k_beyond_the_vocabulary_is_no_limit():
    assert parse(sampling(top_k=49)).sampling.top_k == 49
    assert parse(sampling(top_k=2**32 - 1)).sampling.top_k == 0


def test_fieldbug_10_stop_ids_are_the_union_with_every_eos_id():
    assert parse(request(stop_token_ids=[7])).stop.stop_token_ids == {2, 3, 7}
    assert parse(request(stop_token_ids=[7], ignore_eos=True)).stop.stop_token_ids == {7}


@pytest.mark.parametrize(
    ("message", "numbers", "param"),
    [
        (request([1] * 90, max_tokens=11), ("100", "101", "90", "11"), "max_tokens"),
        (request([1] * 100, max_tokens=1), ("100", "101", "1"), "prompt_ids"),
        (request([1] * 100), ("100",), "prompt_ids"),
        (request([1] * 5000), ("100", "5000"), "prompt_ids"),
        (request([1], max_tokens=2**32 - 1), ("100", "4294967296"), "max_tokens"),
    ],
)
def test_fieldbug_17_what_does_not_fit_is_refused_with_both_numbers(message, numbers, param):
    with pytest.raises(ContextLengthExceeded) as raised:
        parse(message)
    assert raised.value.param == param
    assert raised.value.message.startswith("This model's maximum context length is 100 tokens. However, you")
    for number in numbers:
        assert number in raised.value.message


def test_what_just_fits_is_taken():
    assert parse(request([1] * 90, max_tokens=10)).stop.max_tokens == 10
    assert parse(request([1] * 99)).stop.max_tokens == 1


floats = st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0, 2.0])
ids = st.integers(0, 2**32 - 1) | st.integers(0, 60)
sampling_fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("temperature", "top_p", "min_p"), floats),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), floats),
        "top_k": ids,
        "seed": st.integers(0, 2**64 - 1),
        "logit_bias": st.dictionaries(ids, floats, max_size=4),
    },
)
stop_fields = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": ids,
        "min_tokens": ids,
        "stop_token_ids": st.lists(ids, max_size=5),
        "ignore_eos": st.booleans(),
    },
)
requests = st.builds(
    engine_pb2.GenerateRequest,
    prompt_ids=st.lists(ids, max_size=140),
    sampling=st.builds(lambda fields: common_pb2.SamplingParams(**fields), sampling_fields),
    stop=st.builds(lambda fields: common_pb2.StopParams(**fields), stop_fields),
    cache_salt=st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    priority=st.integers(-(2**31), 2**31 - 1),
    logprobs=st.none() | st.integers(0, 25),
    prompt_logprobs=st.none() | st.integers(0, 25),
)


FIELD_NAMES = {
    field.name
    for message in (engine_pb2.GenerateRequest, common_pb2.SamplingParams, common_pb2.StopParams)
    for field in message.DESCRIPTOR.fields
}


@pytest.fixture
async def engine():
    async with running_engine(scripted(*range(5, 40))) as engine:
        yield engine
        # Whatever was sent, the engine still serves and holds nothing.
        assert (await engine.generate(request(max_tokens=2))).token_ids == [5, 6]
        await engine.until_idle()


@settings(max_examples=200, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=requests)
async def test_odd_requests_are_answered_or_refused_by_name(engine, message):
    refusal = None
    try:
        got = await engine.generate(message)
    except PostroadError as error:
        refusal = error
    if refusal is None:
        assert len(got.token_ids) == got.end.usage.completion_tokens
        assert got.token_ids or message.stop.max_tokens == 0
        assert len(got.logprobs.logprobs) == (len(got.token_ids) if message.HasField("logprobs") else 0)
    else:
        assert refusal.reason in ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED")
        assert refusal.param in FIELD_NAMES
