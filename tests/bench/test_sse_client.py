"""Events as the servers under comparison write them."""

from __future__ import annotations

import pytest

from tests.bench.sse_client import Answer, _take

USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":7,"total_tokens":10}'


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}],"usage":null}',
        b'data: {"choices": [{"index": 0, "text": ""}]}',  # a token that is not a whole character yet
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}',
    ],
)
def test_events_with_tokens_have_a_time(line: bytes) -> None:
    answer = Answer(sent=0.0)
    _take(answer, line)
    assert (len(answer.event_times), answer.completion_tokens) == (1, 0)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        b'data: {"choices":[],' + USAGE + b"}",
    ],
)
def test_other_events_do_not(line: bytes) -> None:
    answer = Answer(sent=0.0)
    _take(answer, line)
    assert answer.event_times == []


def test_usage_and_errors() -> None:
    answer = Answer(sent=0.0)
    _take(answer, b'data: {"choices":[{"index":0,"text":"x"}],' + USAGE + b"}")
    assert (len(answer.event_times), answer.completion_tokens, answer.error) == (1, 7, "")
    _take(answer, b'data: {"error":{"message":"out of memory"}}')
    assert "out of memory" in answer.error
