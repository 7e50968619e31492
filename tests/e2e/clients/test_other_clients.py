"""LiteLLM, LangChain and OpenAI's client for Node.js: they see what a plain request sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, user
from tests.e2e.clients.conftest import RunProgram, said_by
from tests.support.node import NodeProject
from tests.support.stack import Stack

pytestmark = pytest.mark.clients

CHAT: dict[str, Any] = {"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 12}


async def plain_answers(stack: Stack) -> tuple[str, int, str]:
    """A chat's text and its total of tokens, and a continued text."""
    async with Client(stack) as client:
        chat = await client.whole(**CHAT)
        text = await client.text(prompt="1, 2, 3,", temperature=0, max_tokens=4)
        return chat["choices"][0]["message"]["content"], chat["usage"]["total_tokens"], text


async def test_litellm(real_stack: Stack, run_program: RunProgram) -> None:
    content, total, text = await plain_answers(real_stack)
    said = run_program("litellm_calls.py", real_stack.url)
    assert said["whole"] == said["chunks"] == said["rebuilt"] == said["streamed"] == content
    assert said["usage"] == total
    assert said["call"] == "get_time"
    assert said["text"].startswith(text)
    assert said["errors"] == ["NotFoundError", "BadRequestError", "ContextWindowExceededError"]


async def test_langchain(real_stack: Stack, run_program: RunProgram) -> None:
    content, total, _ = await plain_answers(real_stack)
    said = run_program("langchain_chat.py", real_stack.url)
    assert said["whole"] == said["chunks"] == said["streamed"] == content
    assert said["usage"] == said["chunks_usage"] == total
    assert said["logprobs"] == 3
    assert said["call"] == "get_time"
    assert said["after_call"]
    assert 1 <= len(said["city"]["name"]) <= 12


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeProject:
    return NodeProject.install(Path(__file__).parent / "node", tmp_path_factory.mktemp("node"))


async def test_the_official_client_for_node(real_stack: Stack, tool_stack: Stack, node: NodeProject) -> None:
    content, total, text = await plain_answers(real_stack)
    said = said_by(node.node, "conformance.mjs", real_stack.url, tool_stack.url, cwd=node.folder)
    assert said["whole"] == said["chunks"] == said["helper"] == content
    assert said["usage"] == said["chunksUsage"] == total
    assert said["requestId"]
    assert said["logprobs"] > 5
    assert said["parsed"]["kind"] in ("harbour", "plain")
    assert said["cities"] == ["Köln", "Rom"] * 2
    assert said["afterTools"] == ["It is sunny in Köln."] * 2
    assert said["text"] == text
    assert said["response"] == said["responseDeltas"] == said["responseHelper"] == content
    assert said["responseUsage"] == total
    assert said["responseParsed"]["kind"] in ("harbour", "plain")
    assert said["responseCities"] == ["Köln", "Rom"] * 2
    assert said["afterResponseTools"] == ["It is sunny in Köln."] * 2
    assert said["embeddings"] == said["embeddingsAsNumbers"]
    assert said["models"] == [said["model"]]
    assert said["errors"] == [
        ["BadRequestError", 400, "temperature", "invalid_value", True],
        ["NotFoundError", 404, "model", "model_not_found", True],
        ["BadRequestError", 400, "messages", "invalid_value", True],
        ["BadRequestError", 400, "previous_response_id", "unsupported_parameter", True],
        ["BadRequestError", 400, "max_output_tokens", "invalid_value", True],
        ["BadRequestError", 400, "input", "invalid_value", True],
    ]
    async with Client(real_stack) as client:
        await client.wait_idle()
