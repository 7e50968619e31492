"""`python -m services.chat` as a program, with lines from a pipe and, once, with a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.chat.fake_gateway import DONE, SSE_HEAD, event, fake_gateway, response
from tests.support.ports import free_ports

SECONDS = 30


async def echo(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield SSE_HEAD + event("You said: ") + event(body["messages"][-1]["content"]) + DONE


async def start_chat(url: str, terminal: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "services.chat", "--url", url)
    return await asyncio.create_subprocess_exec(*command, stdin=terminal, stdout=terminal, stderr=terminal)


async def talk(url: str, *lines: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a chat over `lines`."""
    process = await start_chat(url)
    out, err = await asyncio.wait_for(process.communicate("".join(f"{line}\n" for line in lines).encode()), SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def roles_and_texts(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


async def test_answers_each_line_and_keeps_the_conversation() -> None:
    async with fake_gateway(echo) as gateway:
        code, out, err = await talk(gateway.url, "one", "", "two", "/quit", "never sent")
    assert (code, out) == (0, "You said: one\nYou said: two\n")
    assert err.startswith(f"tiny at {gateway.url}")
    assert roles_and_texts(gateway.bodies[1]) == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    assert len(gateway.bodies) == 2


async def test_reset_forgets_the_turns_and_keeps_the_system_prompt() -> None:
    async with fake_gateway(echo) as gateway:
        code, _, err = await talk(gateway.url, "/system Be brief.", "one", "/reset", "two", "/system", "three")
    assert code == 0
    assert "forgotten" in err
    assert [roles_and_texts(body) for body in gateway.bodies] == [
        [("system", "Be brief."), ("user", "one")],
        [("system", "Be brief."), ("user", "two")],
        [("user", "three")],
    ]


async def test_an_unknown_command_is_not_sent_to_the_model() -> None:
    async with fake_gateway(echo) as gateway:
        _, _, err = await talk(gateway.url, "/restart")
    assert "no such command: /restart" in err
    assert gateway.bodies == []


async def test_an_error_is_shown_and_the_chat_goes_on_without_that_turn() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body["messages"][-1]["content"] == "bad":
            yield response(429, b'{"error": {"message": "too many requests wait"}}')
        else:
            async for part in echo(body):
                yield part

    async with fake_gateway(answer) as gateway:
        code, out, err = await talk(gateway.url, "bad", "good")
    assert code == 1, "a script can tell"
    assert "error: too many requests wait (HTTP 429)" in err
    assert out == "You said: good\n"
    assert roles_and_texts(gateway.bodies[1]) == [("user", "good")]


async def test_without_a_gateway_it_says_so() -> None:
    code, out, err = await talk(f"http://127.0.0.1:{free_ports(1)[0]}", "hello")
    assert (code, out) == (1, "")
    assert err.startswith("error: no gateway at ")


async def slow_then_echo(body: dict[str, Any]) -> AsyncIterator[bytes]:
    if body["messages"][-1]["content"] == "slow":
        yield SSE_HEAD + event("Once upon")
        await asyncio.Event().wait()
    async for part in echo(body):
        yield part


async def test_an_interrupt_stops_the_answer_and_not_the_chat() -> None:
    async with fake_gateway(slow_then_echo) as gateway:
        process = await start_chat(gateway.url)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"slow\n")
        assert await asyncio.wait_for(process.stdout.readexactly(9), SECONDS) == b"Once upon"
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(gateway.hung_up.wait(), SECONDS)
        out, err = await asyncio.wait_for(process.communicate(b"next\n"), SECONDS)
    assert process.returncode == 0
    assert out == b"\nYou said: next\n"
    assert b"stopped" in err
    assert roles_and_texts(gateway.bodies[1]) == [("user", "slow"), ("assistant", "Once upon"), ("user", "next")]


async def read_terminal(terminal: int, until: bytes) -> None:
    shown = b""
    while until not in shown:
        shown += await asyncio.wait_for(asyncio.to_thread(os.read, terminal, 4096), SECONDS)


async def editor_ready(terminal: int) -> None:
    """The editor has taken the terminal out of line mode; what is typed earlier may be lost in the change."""
    while termios.tcgetattr(terminal)[3] & termios.ICANON:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_terminal_gets_a_line_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no questions to the terminal, which nobody here would answer
    ours, theirs = pty.openpty()
    try:
        async with fake_gateway(echo) as gateway:
            process = await start_chat(gateway.url, theirs)
            await asyncio.wait_for(editor_ready(theirs), SECONDS)
            os.write(ours, b"helpo\x7f\x7flo\r")  # backspaces are the editor's
            await read_terminal(ours, b"You said: hello\r\n")
            await asyncio.wait_for(editor_ready(theirs), SECONDS)
            os.write(ours, b"\x04")
            assert await asyncio.wait_for(process.wait(), SECONDS) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert gateway.bodies[0]["messages"][-1]["content"] == "hello"
