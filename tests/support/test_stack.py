"""The launcher over the real services, and the helper that the end-to-end tests stand on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.support.processes import is_alive, wait_until
from tests.support.stack import SERVICES, Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engine_flags="--executor scripted") as stack:
        yield stack


def answers(stack: Stack) -> bool:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    try:
        return httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def test_a_ready_road_answers_at_once(stack: Stack) -> None:
    assert set(stack.pids()) == set(SERVICES)
    assert answers(stack)
    wait_until(lambda: '"event": "request"' in stack.log_text("gateway"), "the gateway logged the request")


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_that_ends_is_restarted_alone(stack: Stack, service: str, number: signal.Signals) -> None:
    before = stack.pids()
    stack.kill(service, number)
    assert not is_alive(before[service])
    wait_until(lambda: answers(stack), f"the road serves again without the {service} of before", 60)
    after = stack.pids()
    assert {name for name in SERVICES if after[name] != before[name]} == {service}


def test_leaving_stops_every_process() -> None:
    with Stack(engine_flags="--executor scripted") as stack:
        pids = stack.pids()
    assert not any(map(is_alive, pids.values()))


def test_killing_the_launcher_ends_every_service() -> None:
    with Stack(engine_flags="--executor scripted") as stack:
        pids = stack.pids()
        os.kill(stack.launcher_pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids.values())), "the services died with the launcher")


def test_a_service_that_cannot_start_fails_with_its_words() -> None:
    with (
        pytest.raises(AssertionError, match=r"gave up: engine died before it was ever ready"),
        Stack(engine_flags="--model /no/such/model"),
    ):
        pytest.fail("never ready")
