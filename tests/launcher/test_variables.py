"""What no service reads is told by the launcher, and by none of them again."""

from __future__ import annotations

import os

import pytest

from services.launcher.variables import take_unknown_variables


def test_all_that_is_unknown_leaves_the_environment_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POSTROAD_")]:
        monkeypatch.delenv(name)
    known = {"POSTROAD_ENGINE_DTYPE", "POSTROAD_LAUNCHER_PORT", "POSTROAD_LOG_LEVEL", "POSTROAD_ENGINE_MEMORY"}
    unknown = {
        "POSTROAD_ENGINE_DTYP": "POSTROAD_ENGINE_DTYPE",
        "POSTROAD_GATWAY_PORT": "POSTROAD_GATEWAY_PORT",
        "POSTROAD_LAUNCHER_PROT": "POSTROAD_LAUNCHER_PORT",
        "POSTROAD_SOMETHING": "",
    }
    for name in known | set(unknown):
        monkeypatch.setenv(name, "1")
    assert dict(take_unknown_variables()) == unknown
    assert {name for name in os.environ if name.startswith("POSTROAD_")} == known
    assert take_unknown_variables() == []
