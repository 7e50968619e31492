"""`python -m services.chat`: chat in the terminal with a running gateway. Ctrl-C stops an answer, /quit leaves.

Reads plain lines where standard input is no terminal. Exit code 1 when an answer failed or there is no gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from services.chat.client import ChatClient, ChatError, Sampling
from services.chat.lines import lines_of_stdin
from services.chat.session import COMMANDS, ChatSession


async def chat(url: str, sampling: Sampling, api_key: str) -> int:
    """Runs the chat on the standard streams; returns the exit code."""
    async with ChatClient(url, sampling, api_key) as client:
        try:
            model = await client.model()
        except ChatError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{model} at {url}; /help lists the commands", file=sys.stderr)
        session = ChatSession(client, model, lines_of_stdin(list(COMMANDS)), sys.stdout, sys.stderr)
        await session.run()
    return 1 if session.failed else 0


def main() -> int:
    """Reads the flags and chats; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.chat", description="Chat with a running gateway.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the gateway is (default: %(default)s)")
    default = Sampling()
    parser.add_argument(
        "--temperature",
        type=float,
        default=default.temperature,
        help="0 for the most probable words, more for variety, 2 at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=default.max_tokens, help="length of an answer at most (default: %(default)s)"
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=default.repetition_penalty,
        help="more than 1 keeps an answer from repeating itself, 1 for none (default: %(default)s)",
    )
    args = parser.parse_args()
    sampling = Sampling(args.temperature, args.max_tokens, args.repetition_penalty)
    try:
        return asyncio.run(chat(args.url, sampling, os.environ.get("OPENAI_API_KEY", "")))
    except KeyboardInterrupt:  # between two answers, without a line editor
        return 130


if __name__ == "__main__":
    sys.exit(main())
