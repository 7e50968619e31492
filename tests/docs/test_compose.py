"""docker-compose.yml, .env.example and deploy/ against the code; no container runs here."""

from __future__ import annotations

import importlib.util
import json
import re
from types import ModuleType

import pytest
import yaml

from services.common.variables import COMPOSE_VARIABLES, STATIONS
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.station import SERVICE as DETOKENIZER
from services.engine.settings import EngineSettings
from services.engine.station import SERVICE as ENGINE
from services.gateway.settings import GatewaySettings
from services.launcher.settings import LauncherSettings
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.station import SERVICE as TOKENIZER
from tests.docs.pages import DOCS, ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile.cpu").read_text()


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("env_example", ROOT / "deploy" / "env_example.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_env_example_is_up_to_date(generator: ModuleType) -> None:
    assert (ROOT / ".env.example").read_text() == generator.env_example(), "run `make env-example`"


def test_every_variable_of_compose_is_in_env_example_with_its_default(generator: ModuleType) -> None:
    given = dict(re.findall(r"^#(\w+)=(.*)$", generator.env_example(), flags=re.M))
    used = dict(re.findall(r"\$\{(\w+):?-([^}]*)\}", COMPOSE))
    assert used
    assert set(used) <= set(given)
    differ = {name for name, default in used.items() if default and given[name] != default}
    assert differ == {"POSTROAD_MODELS_DIR"}, "a volume of that name there, an example here"


def test_compose_s_own_variables_are_known_as_such() -> None:
    """A station would warn of any other that reaches it by `.env`."""
    stations = (GatewaySettings, TokenizerSettings, DetokenizerSettings, EngineSettings, LauncherSettings)
    assert {settings.station for settings in stations} == set(STATIONS)
    texts = COMPOSE + (ROOT / "docker-compose.gpu.yml").read_text()
    used = set(re.findall(r"\$\{(POSTROAD_\w+)", texts))
    assert used - {name for settings in stations for name in settings.variables()} == COMPOSE_VARIABLES


def test_the_stations_find_each_other() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    gateway = services["gateway"]["environment"]
    assert f"engine:{EngineSettings.model_fields['port'].default}" in gateway["POSTROAD_GATEWAY_ENGINES"]
    for station in ("tokenizer", "detokenizer"):
        port = GatewaySettings.model_fields[station].default.rpartition(":")[2]
        assert gateway[f"POSTROAD_GATEWAY_{station.upper()}"] == f"dns:///{station}:{port}"


def test_every_station_is_confined() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    for name in ("gateway", "tokenizer", "detokenizer", "engine", "engine-rank-1"):
        station = services[name]
        assert station["read_only"], name
        assert station["cap_drop"] == ["ALL"], name
        assert station["restart"] == "unless-stopped", name
        assert "mem_limit" in station, name
        assert ("ports" in station) == (name == "gateway"), name


def test_the_second_rank_joins_the_engine_by_its_profile_alone() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    rank = services["engine-rank-1"]
    assert rank["profiles"] == ["tp2"]
    assert rank["image"] == services["engine"]["image"]
    size, number = (int(rank["environment"][f"POSTROAD_ENGINE_{name}"]) for name in ("TENSOR_PARALLEL_SIZE", "RANK"))
    settings = EngineSettings(
        tensor_parallel_size=size, rank=number, leader=rank["environment"]["POSTROAD_ENGINE_LEADER"]
    )
    assert settings.leader == f"engine:{EngineSettings.model_fields['port'].default}"


def test_health_checks_ask_for_the_right_service() -> None:
    asked = set(re.findall(r'"127\.0\.0\.1:\d+", "(\S+)"\]', DOCKERFILE))
    assert asked == {TOKENIZER, ENGINE, DETOKENIZER}


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/observability/grafana/dashboards/postroad.json").read_text())
    text = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
    documented = set(re.findall(r"^\| `(postroad_\w+)`", (DOCS / "metrics.md").read_text(), flags=re.M))
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"postroad_\w+", text)}
    assert len(shown) > 15
    assert shown <= documented


def test_prometheus_scrapes_every_station_on_its_metrics_port() -> None:
    config = yaml.safe_load((ROOT / "deploy/observability/prometheus.yml").read_text())
    ports = {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in config["scrape_configs"]}
    assert ports == {"gateway": 8000, "tokenizer": 9461, "engine": 9462, "engine-rank-1": 9462, "detokenizer": 9463}


def test_grafana_is_given_the_dashboard_and_the_source_that_it_names() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    folder = ROOT / "deploy/observability/grafana"
    [source] = yaml.safe_load((folder / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert services["prometheus"]["ports"][0].endswith(":9090}:9090")
    dashboard = json.loads((folder / "dashboards/postroad.json").read_text())
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel}
    assert used == {source["uid"]}
    [provider] = yaml.safe_load((folder / "provisioning/dashboards/postroad.yml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounts["./deploy/observability/grafana/dashboards"] == provider["options"]["path"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/postroad.json"


def test_the_collector_listens_where_the_stations_are_told_to_send() -> None:
    config = yaml.safe_load((ROOT / "deploy/observability/otel-collector.yml").read_text())
    [port] = re.findall(r"POSTROAD_OTLP_ENDPOINT=http://otel-collector:(\d+)", COMPOSE)
    assert config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{port}"
    traces = config["service"]["pipelines"]["traces"]
    for part, names in traces.items():
        assert set(names) <= set(config[part]), part
    mounts = dict(volume.split(":")[:2] for volume in yaml.safe_load(COMPOSE)["services"]["otel-collector"]["volumes"])
    assert f"--config={mounts['./deploy/observability/otel-collector.yml']}" in COMPOSE
