"""The call that is shown when the road is ready can be pasted."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from services.launcher.banner import banner
from services.launcher.road import plan_road
from services.launcher.settings import LauncherSettings


def headers_of_the_call(*flags: str) -> list[str]:
    shown = banner(plan_road(LauncherSettings.parse(list(flags))), Path(".run/logs"))
    assert ".run/logs/" in shown
    _, call, _ = shown.split("\n\n")
    words = shlex.split(call)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    return [value for option, value in pairwise(words) if option == "-H"]


def test_a_call_without_a_key() -> None:
    assert headers_of_the_call() == ["content-type: application/json"]


def test_a_gateway_that_asks_for_keys_is_shown_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.alice]\nkey = "0123456789abcdef"\n')
    with_key = ["content-type: application/json", "authorization: Bearer $OPENAI_API_KEY"]
    assert headers_of_the_call(f"--gateway-flags=--api-keys-file {keys}") == with_key
    monkeypatch.setenv("POSTROAD_GATEWAY_API_KEYS_FILE", str(keys))
    assert headers_of_the_call() == with_key
