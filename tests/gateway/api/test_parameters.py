from __future__ import annotations

from typing import Any

import pytest

from services.gateway.api.parameters import OFF_VALUES, GenerationParameters, UnsupportedFields
from tests.gateway.support.running import RunningGateway

ASKED_FOR: dict[str, Any] = {
    "suffix": "x",
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "audio": {"voice": "x"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content"},
    "web_search_options": {},
    "reasoning_effort": "high",
    "verbosity": "low",
    "store": True,
    "use_beam_search": True,
    "length_penalty": 2,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "truncate_prompt_tokens": 1,
    "prompt_embeds": "x",
    "chat_template": "x",
    "documents": [{}],
    "continue_final_message": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "include_reasoning": False,
    "separate_reasoning": False,
    "thinking_token_budget": 5,
    "logits_processors": ["x"],
    "custom_logit_processor": "x",
    "lora_path": "x",
    "return_hidden_states": True,
    "guided_whitespace_pattern": " ",
    "json_schema": {},
    "regex": "a",
    "ebnf": "root ::= x",
    "grammar": "root ::= x",
    "stop_regex": "a",
    "typical_p": 0.5,
    "mirostat": 2,
}


def test_every_unsupported_field_says_how_it_is_left_off() -> None:
    refused = set(UnsupportedFields.__struct_fields__) - set(GenerationParameters.__struct_fields__)
    assert refused == set(OFF_VALUES) == set(ASKED_FOR)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_fieldbug_19_what_is_not_supported_is_refused_by_name(gateway: RunningGateway, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    for name, value in ASKED_FOR.items():
        response = await gateway.http.post(path, json={**prompt, name: value})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, name, "unsupported_parameter")
        assert name in error["message"]
    assert not gateway.stations.detokenizer.requests


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_values_that_mean_off_are_accepted(gateway: RunningGateway, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    off = {name: values[0] for name, values in OFF_VALUES.items() if values}
    nulls = dict.fromkeys(OFF_VALUES)
    for fields in (off, nulls):
        response = await gateway.http.post(path, json={**prompt, **fields})
        assert response.status_code == 200, response.text


async def test_fields_of_chats_are_refused_in_text_completions(gateway: RunningGateway) -> None:
    for field, value in {"tools": [{"type": "function"}], "tool_choice": "auto", "top_logprobs": 1}.items():
        error = (await gateway.complete(**{field: value})).json()["error"]
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")


async def test_unknown_fields_are_accepted_as_openai_does(gateway: RunningGateway) -> None:
    fields = {"user": "me", "metadata": {"a": "b"}, "store": False, "never_heard_of": [1]}
    assert (await gateway.chat(**fields)).status_code == 200


def nested(levels: int) -> Any:
    """An object with arrays inside, so many levels in all."""
    value: Any = {}
    for level in reversed(range(levels - 1)):
        value = [value] if level % 2 else {"a": value}
    return value


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fieldbug_12_empty_stop", {"stop": [""]}, "stop[0]"),
    ("fieldbug_12_empty_stop_text", {"stop": ""}, "stop"),
    ("fieldbug_12_negative_max_tokens", {"max_tokens": -1}, "max_tokens"),
    ("fieldbug_12_zero_max_tokens", {"max_tokens": 0}, "max_tokens"),
    ("fieldbug_12_zero_n", {"n": 0}, "n"),
    ("fieldbug_14_null_stop_id", {"stop_token_ids": [None]}, "stop_token_ids[0]"),
    ("fieldbug_14_negative_stop_id", {"stop_token_ids": [1, -5]}, "stop_token_ids[1]"),
    ("fieldbug_14_stop_id_over_32_bits", {"stop_token_ids": [2**32]}, "stop_token_ids[0]"),
    ("fieldbug_14_text_stop_id", {"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ("many_stop_ids", {"stop_token_ids": list(range(65))}, "stop_token_ids"),
    ("many_stops", {"stop": ["x"] * 17}, "stop"),
    ("long_stop", {"stop": ["a", "x" * 1025]}, "stop[1]"),
    ("number_stop", {"stop": 3}, "stop"),
    ("temperature_low", {"temperature": -0.1}, "temperature"),
    ("temperature_high", {"temperature": 2.1}, "temperature"),
    ("temperature_text", {"temperature": "hot"}, "temperature"),
    ("temperature_list", {"temperature": [1]}, "temperature"),
    ("top_p_zero", {"top_p": 0}, "top_p"),
    ("top_p_high", {"top_p": 1.01}, "top_p"),
    ("top_k_low", {"top_k": -2}, "top_k"),
    ("top_k_fraction", {"top_k": 1.5}, "top_k"),
    ("min_p", {"min_p": 2}, "min_p"),
    ("seed", {"seed": 2**63}, "seed"),
    ("seed_text", {"seed": "x"}, "seed"),
    ("presence", {"presence_penalty": 2.5}, "presence_penalty"),
    ("frequency", {"frequency_penalty": -2.5}, "frequency_penalty"),
    ("repetition", {"repetition_penalty": 0}, "repetition_penalty"),
    ("repetition_that_overflows", {"repetition_penalty": 1e-38}, "repetition_penalty"),
    ("repetition_high", {"repetition_penalty": 11}, "repetition_penalty"),
    ("bias_value", {"logit_bias": {"5": 101}}, "logit_bias"),
    ("bias_null", {"logit_bias": {"5": None}}, "logit_bias"),
    ("bias_key", {"logit_bias": {"five": 1}}, "logit_bias"),
    ("bias_negative_key", {"logit_bias": {"-5": 1}}, "logit_bias"),
    ("bias_list", {"logit_bias": [1]}, "logit_bias"),
    ("bias_many", {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ("min_tokens", {"min_tokens": -1}, "min_tokens"),
    ("min_over_max", {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ("ignore_eos", {"ignore_eos": "yes"}, "ignore_eos"),
    ("stream_text", {"stream": "true"}, "stream"),
    ("stream_options_alone", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("include_usage", {"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ("priority", {"priority": 101}, "priority"),
    ("cache_salt_long", {"cache_salt": "é" * 129}, "cache_salt"),
    ("cache_salt_type", {"cache_salt": 5}, "cache_salt"),
    ("speculative_low", {"num_speculative_tokens": -1}, "num_speculative_tokens"),
    ("speculative_high", {"num_speculative_tokens": 17}, "num_speculative_tokens"),
    ("template_kwargs", {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ("min_over_max_completion", {"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"),
    ("deep_template_kwargs", {"chat_template_kwargs": nested(33)}, "chat_template_kwargs"),
    ("deeper_template_kwargs", {"chat_template_kwargs": nested(900)}, "chat_template_kwargs"),
    ("max_completion_tokens", {"max_completion_tokens": 0}, "max_completion_tokens"),
]


async def test_fieldbugs_12_and_14_unusable_values_are_refused_by_name(gateway: RunningGateway) -> None:
    for case, fields, param in REFUSED:
        response = await gateway.chat(**fields)
        assert response.status_code == 400, case
        error = response.json()["error"]
        assert error["param"] == param, case
        assert param in error["message"], case
        assert error["type"] == "invalid_request_error", case
    assert not gateway.stations.detokenizer.requests
    assert (await gateway.chat()).status_code == 200, "the server goes on"
    await gateway.assert_idle()


async def test_every_parameter_reaches_the_stations(gateway: RunningGateway) -> None:
    response = await gateway.chat(
        model="smol",
        max_tokens=9,
        min_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.25,
        logit_bias={"5": -100, "7": 1.5},
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        priority=-3,
        cache_salt="tenant",
        num_speculative_tokens=0,
    )
    assert response.status_code == 200
    [request] = gateway.stations.detokenizer.requests
    sampling, stop = request.request.sampling, request.request.stop
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 7, 0.25)
    assert sampling.HasField("temperature")
    assert sampling.seed == 2**64 - 1
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1.5, 1.25)
    assert dict(sampling.logit_bias) == {5: -100, 7: 1.5}
    assert (stop.max_tokens, stop.min_tokens, list(stop.stop_token_ids), stop.ignore_eos) == (9, 2, [3, 4], True)
    assert (list(request.stop), request.skip_special_tokens, request.include_stop_str_in_output) == (
        ["a", "b"],
        False,
        True,
    )
    assert (request.request.priority, request.request.cache_salt) == (-3, "tenant")
    assert request.request.HasField("num_speculative_tokens")
    assert request.request.num_speculative_tokens == 0


async def test_numbers_that_float32_cannot_hold_mean_what_they_say(gateway: RunningGateway) -> None:
    """Rounded to 0 a top_p would be refused, as a value that nobody sent; the others mean the same at 0."""
    tiny = {"temperature": 1e-300, "min_p": 1e-300, "presence_penalty": -1e-300, "frequency_penalty": 5e-324}
    assert (await gateway.chat(top_p=1e-300, **tiny)).status_code == 200
    assert (await gateway.chat(top_p=0.9999999999, temperature=-0.0, min_p=-0.0)).status_code == 200
    first, second = (message.request.sampling for message in gateway.stations.detokenizer.requests)
    assert first.top_p == 2.0**-126
    assert (first.temperature, first.min_p, first.presence_penalty, first.frequency_penalty) == (0, 0, 0, 0)
    assert (second.top_p, second.temperature, second.min_p) == (1, 0, 0)


async def test_what_is_left_out_or_null_stays_unset(gateway: RunningGateway) -> None:
    nulls = dict.fromkeys(["temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "logit_bias", "stream"])
    await gateway.chat(**nulls)
    await gateway.chat(top_k=-1)
    null, no_limit = gateway.stations.detokenizer.requests
    assert not null.request.sampling.ListFields()
    assert not null.request.stop.ListFields()
    assert not null.stop
    assert not null.HasField("skip_special_tokens")
    assert no_limit.request.sampling.top_k == 0
