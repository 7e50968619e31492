"""Variables that no service reads, told once for all of them."""

from __future__ import annotations

import os

from services.common.variables import unknown_variables
from services.detokenizer.settings import DetokenizerSettings
from services.engine.settings import EngineSettings
from services.gateway.settings import GatewaySettings
from services.launcher.settings import LauncherSettings
from services.tokenizer.settings import TokenizerSettings


def take_unknown_variables() -> list[tuple[str, str]]:
    """As `unknown_variables`. They leave the environment, as each service would tell of them again."""
    found = list(
        unknown_variables(LauncherSettings, GatewaySettings, TokenizerSettings, DetokenizerSettings, EngineSettings)
    )
    for name, _ in found:
        del os.environ[name]
    return found
