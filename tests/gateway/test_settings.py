from __future__ import annotations

import pytest

from services.gateway.settings import GatewaySettings


def test_defaults_are_the_stations_on_loopback() -> None:
    settings = GatewaySettings.parse([])
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.engine_addresses == ["127.0.0.1:50052"]
    assert (settings.request_timeout, settings.retry_wait) == (600, 30)


def test_engines_are_comma_separated() -> None:
    settings = GatewaySettings.parse(["--engines", "a:1, b:2,", "--max-body-bytes", "5"])
    assert settings.engine_addresses == ["a:1", "b:2"]
    assert settings.max_body_bytes == 5


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_GATEWAY_TOKENIZER", "dns:///tokenizer:50051")
    assert GatewaySettings.parse([]).tokenizer == "dns:///tokenizer:50051"


@pytest.mark.parametrize(
    "flags",
    [
        *(["--cors-origins", origins] for origins in ("a.example", "https://a.example/", "*, https://A.example")),
        ["--engines", " , "],
        ["--engines", "engine-0:50052, engine-1"],
        ["--request-timeout", "0"],
        ["--header-timeout", "0"],
        ["--port", "70000"],
    ],
)
def test_unusable_settings_exit_and_say_which(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        GatewaySettings.parse(flags)
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err
