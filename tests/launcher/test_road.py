"""The command lines of the four services."""

from __future__ import annotations

import pytest

from services.launcher.road import plan_road
from services.launcher.settings import LauncherSettings


def argv_of(name: str, *flags: str) -> list[str]:
    (spec,) = (spec for spec in plan_road(LauncherSettings.parse(list(flags))).services if spec.name == name)
    return list(spec.argv)


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_the_engine_is_started_first_and_the_gateway_is_the_entrance() -> None:
    services = plan_road(LauncherSettings.parse([])).services
    assert [(spec.name, spec.entrance) for spec in services] == [
        ("engine", False),
        ("tokenizer", False),
        ("detokenizer", False),
        ("gateway", True),
    ]


def test_ports_reach_the_service_and_its_callers() -> None:
    flags = ("--port", "9000", "--engine-port", "9001", "--tokenizer-port", "9002", "--detokenizer-port", "9003")
    gateway = argv_of("gateway", *flags)
    assert value(gateway, "--port") == "9000"
    assert value(gateway, "--engines") == "127.0.0.1:9001"
    assert value(gateway, "--tokenizer") == "127.0.0.1:9002"
    assert value(gateway, "--detokenizer") == "127.0.0.1:9003"
    for name, port in (("engine", "9001"), ("tokenizer", "9002"), ("detokenizer", "9003")):
        assert value(argv_of(name, *flags), "--port") == port
    for name in ("tokenizer", "detokenizer"):
        assert value(argv_of(name, *flags), "--engine") == "127.0.0.1:9001"


def test_only_the_gateway_leaves_loopback() -> None:
    assert value(argv_of("gateway", "--host", "0.0.0.0"), "--host") == "0.0.0.0"
    for name in ("engine", "tokenizer", "detokenizer"):
        assert value(argv_of(name, "--host", "0.0.0.0"), "--host") == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000"), ("my.host", "http://my.host:8000")],
)
def test_the_url_reaches_the_gateway(host: str, url: str) -> None:
    assert plan_road(LauncherSettings.parse(["--host", host])).url == url


def test_metrics_ports_and_none() -> None:
    assert value(argv_of("engine"), "--metrics-port") == "9462"
    assert value(argv_of("engine", "--engine-metrics-port", "9999"), "--metrics-port") == "9999"
    assert value(argv_of("engine", "--no-metrics"), "--metrics-port") == "0"
    assert "--metrics-port" not in argv_of("gateway")
    assert len(plan_road(LauncherSettings.parse(["--no-metrics"])).ports) == 4


def test_the_model_goes_to_the_engine_alone_and_only_when_given() -> None:
    assert value(argv_of("engine", "--model", "some/folder"), "--model") == "some/folder"
    assert "--model" not in argv_of("engine")
    assert "--model" not in argv_of("tokenizer", "--model", "some/folder")


def test_more_flags_are_split_as_a_shell_does_and_come_last() -> None:
    argv = argv_of("engine", "--engine-flags=--dtype float32 --served-model-name 'two words'")
    assert argv[-4:] == ["--dtype", "float32", "--served-model-name", "two words"]


def test_an_open_quote_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        LauncherSettings.parse(["--engine-flags='open"])
    assert "--engine-flags" in capsys.readouterr().err


def test_shared_settings_are_passed_on() -> None:
    for name in ("engine", "tokenizer", "detokenizer", "gateway"):
        argv = argv_of(name, "--log-level", "debug", "--drain-timeout", "3", "--otlp-endpoint", "http://127.0.0.1:4317")
        assert value(argv, "--log-level") == "debug"
        assert value(argv, "--log-format") == "json", "the launcher makes it readable"
        assert value(argv, "--drain-timeout") == "3.0"
        assert value(argv, "--otlp-endpoint") == "http://127.0.0.1:4317"


def test_ranks_of_the_engine_follow_it() -> None:
    flags = ("--engine-port", "9001", "--engine-flags=--tensor-parallel-size 3 --dtype float32", "--model", "a/b")
    services = plan_road(LauncherSettings.parse(list(flags))).services
    assert [spec.name for spec in services] == ["engine", "rank-1", "rank-2", "tokenizer", "detokenizer", "gateway"]
    assert "--rank" not in argv_of("engine", *flags)
    for number in (1, 2):
        argv = argv_of(f"rank-{number}", *flags)
        assert value(argv, "--rank") == str(number)
        assert value(argv, "--leader") == "127.0.0.1:9001"
        assert value(argv, "--tensor-parallel-size") == "3"
        assert value(argv, "--dtype") == "float32"
        assert value(argv, "--model") == "a/b"
        assert value(argv, "--port") == value(argv, "--metrics-port") == "0"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--engine-flags=--tensor-parallel-size 2 --executor native",
            "tensor-parallel-size 2 needs the torch executor",
        ),
        ("--tokenizer-flags=--threads 0", "python -m services.tokenizer: --threads: "),
        ("--tokenizer-flags=--engine foo", "python -m services.tokenizer: --engine: must be host:port"),
        ("--detokenizer-flags=--pace-ms x", "python -m services.detokenizer: --pace-ms: "),
        ("--gateway-flags=--api-keys-file /no/such.toml", "python -m services.gateway: --api-keys-file: /no/such.toml"),
    ],
)
def test_wrong_flags_of_a_service_are_told_before_anything_starts(
    flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan_road(LauncherSettings.parse([flags]))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "own"),
    [
        ("--engine-flags=--dtype float32 --port 6000", "--engine-port"),
        ("--tokenizer-flags=--port=6000", "--tokenizer-port"),
        ("--gateway-flags=--port 6000", "--port"),
    ],
)
def test_a_port_that_the_others_would_not_learn_of_is_refused(
    flags: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        LauncherSettings.parse([flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert flags.partition("=")[0] in said
    assert said.endswith(f"; give it {own}\n")
