"""docs/settings.md against the settings classes."""

from __future__ import annotations

import re
import sys
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from services.chat.__main__ import main as chat_main
from services.common.settings import SHARED_FIELDS, StationSettings
from services.detokenizer.settings import DetokenizerSettings
from services.engine.settings import EngineSettings
from services.gateway.settings import GatewaySettings
from services.launcher.settings import LauncherSettings
from services.tokenizer.settings import TokenizerSettings
from tests.docs.pages import ROOT, Row, by_code, code, codes, section, table

SERVICES = (GatewaySettings, TokenizerSettings, DetokenizerSettings, EngineSettings, LauncherSettings)
PAGE = "settings.md"


def own_fields(settings: type[StationSettings]) -> dict[str, FieldInfo]:
    """The fields that a service adds to the shared ones, or gives another default or meaning."""
    shared = StationSettings.model_fields

    def same(name: str, field: FieldInfo) -> bool:
        known = shared.get(name)
        return known is not None and (known.default, known.description) == (field.default, field.description)

    return {name: field for name, field in settings.model_fields.items() if not same(name, field)}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def shown_default(value: Any) -> str:
    match value:
        case None | "":
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
    return f"`{value}`"


def shown_range(field: FieldInfo) -> str:
    """`a`, `b` for choices; otherwise the bounds in words."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    bounds = {key: getattr(m, key) for m in field.metadata for key in ("ge", "gt", "le") if hasattr(m, key)}
    match bounds:
        case {"ge": low, "le": high}:
            return f"{low} to {high}"
        case {"ge": low}:
            return f"at least {low}"
        case {"gt": low, "le": high}:
            return f"more than {low}, at most {high}"
        case {"gt": low}:
            return f"more than {low}"
    assert not bounds
    return ""


def check_rows(rows: list[Row], fields: dict[str, FieldInfo]) -> None:
    documented = by_code(rows, "flag")
    assert list(documented) == [flag(name) for name in fields]
    for name, field in fields.items():
        row = documented[flag(name)]
        assert row["default"] == shown_default(field.default), row["flag"]
        assert row["range"] == shown_range(field), row["flag"]
        assert row["meaning"], row["flag"]


def test_shared_settings() -> None:
    check_rows(table(PAGE, "All services"), StationSettings.model_fields)
    assert set(StationSettings.model_fields) == SHARED_FIELDS


@pytest.mark.parametrize("settings", SERVICES, ids=lambda settings: settings.station)
def test_settings_of_a_service(settings: type[StationSettings]) -> None:
    check_rows(table(PAGE, settings.station), own_fields(settings))


@pytest.mark.parametrize("settings", SERVICES, ids=lambda settings: settings.station)
def test_documented_flags_and_variables_are_taken(
    settings: type[StationSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given as a flag, or as the variable that the page's rule makes of it, each default gives the default."""
    (prefix,) = re.findall(r"^Variables: `(\w+)…`", section(PAGE, settings.station), flags=re.M)
    values = {
        code(row["flag"]): code(row["default"])
        for row in [*table(PAGE, "All services"), *table(PAGE, settings.station)]
        if row["default"] != "none"
    }
    plain = settings.parse([])
    switches = [name for name, value in values.items() if value == "true"]
    assert settings.parse([f"{name}={value}" for name, value in values.items() if name not in switches]) == plain
    assert settings.parse(switches) == plain
    for name, value in values.items():
        monkeypatch.setenv(prefix + name.removeprefix("--").replace("-", "_").upper(), value)
    assert settings.parse([]) == plain
    monkeypatch.setenv(f"{prefix}PORT", "1234")
    assert settings.parse([]).port == 1234  # type: ignore[attr-defined]


def test_flags_of_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["chat", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        chat_main()
    offered = dict(re.findall(r"^  (--[\w-]+) [A-Z_]+\s[^()]*\(default: (.*)\)$", capsys.readouterr().out, flags=re.M))
    assert {code(row["flag"]): code(row["default"]) for row in table(PAGE, "chat")} == offered


def test_variables_that_the_code_itself_reads_or_sets() -> None:
    documented = {name for row in table(PAGE, "Variables of others") for name in codes(row["variable"])}
    sources = [path for folder in ("services", "requirements") for path in (ROOT / folder).rglob("*.py")]
    pattern = re.compile(r"environ(?:\.\w+\(|\[)\"(\w+)\"")
    used = {name for path in sources if "pb" not in path.parts for name in pattern.findall(path.read_text())}
    assert used == {name for name in documented if not name.startswith("HF_")}  # those are huggingface_hub's
