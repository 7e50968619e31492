"""Whatever JSON a client sends, the gateway answers 200 or a proper 4xx."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.api.chat import ChatRequest
from services.gateway.api.completions import CompletionRequest
from services.gateway.api.messages.request import MessagesRequest
from services.gateway.error_forms import is_anthropic
from tests.gateway.support.running import running_gateway

VALID: dict[str, Any] = {
    "model": "smol",
    "messages": [{"role": "user", "content": "x"}],
    "prompt": "x",
    "max_tokens": 5,
    "temperature": 0.5,
    "stop": ["a"],
    "logit_bias": {"5": 1},
    "stream_options": {"include_usage": True},
    "stream": True,
}
FIELDS = sorted(
    {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *MessagesRequest.__struct_fields__}
)

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"]
ERROR_FIELDS = {False: {"message", "type", "param", "code"}, True: {"type", "message", "details"}}

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]) | values, "content": values}), max_size=3
)
changes = st.dictionaries(st.sampled_from(FIELDS), values | messages, max_size=5)
bodies = st.builds(
    lambda change, dropped: {k: v for k, v in {**VALID, **change}.items() if k not in dropped},
    changes,
    st.sets(st.sampled_from(sorted(VALID))),
)
texts = st.one_of(
    bodies.map(lambda body: json.dumps(body).encode("utf-8", "surrogatepass")),
    values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.binary(max_size=50),
    st.tuples(bodies, st.integers(0, 200)).map(lambda given: json.dumps(given[0]).encode()[: given[1]]),
)


def test_no_body_gives_a_5xx() -> None:
    with asyncio.Runner() as runner:  # one event loop for all examples
        stack = AsyncExitStack()
        gateway = runner.run(stack.enter_async_context(running_gateway()))

        async def send(path: str, body: bytes) -> None:
            response = await gateway.http.post(path, content=body)
            assert response.status_code in (200, 400, 404), response.text
            if response.status_code != 200:
                assert set(response.json()["error"]) == ERROR_FIELDS[is_anthropic(path)]

        @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.sampled_from(PATHS), texts)
        def answers_properly(path: str, body: bytes) -> None:
            runner.run(send(path, body))

        try:
            answers_properly()
            runner.run(gateway.assert_idle())
        finally:
            runner.run(stack.aclose())
