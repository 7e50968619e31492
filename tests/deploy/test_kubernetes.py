"""deploy/kubernetes against Kubernetes' own schemas, the stations' settings, and docker-compose.yml. No cluster runs
here. What kustomize makes of the overlays is looked at where there is a kubectl."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from services.common.settings import SHARED_FIELDS, SHARED_PREFIX, StationSettings
from services.detokenizer.settings import DetokenizerSettings
from services.engine.settings import EngineSettings
from services.gateway.settings import GatewaySettings
from services.tokenizer.settings import TokenizerSettings
from tests.deploy.manifests import KUBERNETES, ROOT, STATIONS, Manifests, Object, rendered, with_all_components, written

SETTINGS: dict[str, type[StationSettings]] = {
    settings.station: settings for settings in (GatewaySettings, TokenizerSettings, EngineSettings, DetokenizerSettings)
}
COMPOSE: Object = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
COMPOSE_GPU: Object = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile.cpu").read_text()
OLDEST = "1.30.0"
RANK = "engine-rank"  # with tensor parallelism: the ranks that follow
NEWEST = kubernetes_validate.latest_version()
POSTROAD = {"kubernetes.io/metadata.name": "postroad"}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlays")
OVERLAYS = sorted(folder.name for folder in (KUBERNETES / "overlays").iterdir())
WAYS = ["base", *(pytest.param(name, marks=needs_kubectl) for name in (*OVERLAYS, "all components"))]


@pytest.fixture(scope="module", params=WAYS)
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    if request.param == "base":
        return Manifests(written(KUBERNETES / "base"))
    if request.param == "all components":
        return Manifests(rendered(with_all_components(tmp_path_factory.mktemp("manifests"))))
    return Manifests(rendered(KUBERNETES / "overlays" / request.param))


@cache
def require_valid(manifest: str, version: str) -> None:
    """Once for an object that several overlays have."""
    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(manifests: Manifests, version: str) -> None:
    """The operator's ServiceMonitor is no part of Kubernetes; a test below looks at its fields."""
    own = [one for one in manifests.objects if one["kind"] != "ServiceMonitor"]
    assert len(own) >= len(manifests.objects) - 1
    for one in own:
        require_valid(json.dumps(one, sort_keys=True), version)


def test_a_wrong_field_would_be_found() -> None:
    [service, *_] = [one for one in written(KUBERNETES / "base") if one["kind"] == "Service"]
    wrong = json.loads(json.dumps(service))
    wrong["spec"]["clusterIp"] = "None"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_names_are_not_given_twice(manifests: Manifests) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests.objects]
    assert len(names) == len(set(names))


@needs_kubectl
@pytest.mark.parametrize("station", STATIONS)
def test_each_station_is_a_base_of_its_own(station: str) -> None:
    kinds = {one["kind"] for one in rendered(KUBERNETES / "base" / station)}
    assert {"Service", "PodDisruptionBudget"} < kinds


def test_selectors_meet_what_they_are_for(manifests: Manifests) -> None:
    assert set(manifests.workloads) - {RANK} == set(STATIONS)
    for name, workload in manifests.workloads.items():
        assert manifests.selected(workload["spec"]["selector"]["matchLabels"]) == {name}
        for constraint in manifests.pod(name).get("topologySpreadConstraints", ()):
            assert manifests.selected(constraint["labelSelector"]["matchLabels"]) == {name}
    for kind, path in (("Service", []), ("PodDisruptionBudget", ["matchLabels"])):
        found = {}
        for one in manifests.of(kind):
            selector = one["spec"]["selector"]
            for key in path:
                selector = selector[key]
            found[one["metadata"]["name"]] = manifests.selected(selector)
        assert found == {name: {name} for name in manifests.workloads}, kind
    scaled = {one["metadata"]["name"]: one["spec"]["scaleTargetRef"] for one in manifests.of("HorizontalPodAutoscaler")}
    assert scaled == {
        name: {"apiVersion": "apps/v1", "kind": "Deployment", "name": name} for name in STATIONS if name != "engine"
    }
    for policy in manifests.of("NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"]
        assert manifests.selected(labels), policy["metadata"]["name"]
        for rule in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
            for peer in (*rule.get("from", ()), *rule.get("to", ())):
                if "namespaceSelector" not in peer:
                    assert manifests.selected(peer["podSelector"]["matchLabels"]), policy["metadata"]["name"]


def test_what_the_autoscaler_scales_has_no_count_and_asks_for_cpu(manifests: Manifests) -> None:
    for scaler in manifests.of("HorizontalPodAutoscaler"):
        name = scaler["spec"]["scaleTargetRef"]["name"]
        assert "replicas" not in manifests.workloads[name]["spec"]
        assert "cpu" in manifests.container(name)["resources"]["requests"]


@pytest.mark.parametrize("station", STATIONS)
def test_ports_are_those_of_the_settings(manifests: Manifests, station: str) -> None:
    fields = SETTINGS[station].model_fields
    main = "http" if station == "gateway" else "grpc"
    expected = {main: fields["port"].default}
    if "metrics_port" in fields:
        expected["metrics"] = fields["metrics_port"].default
    assert manifests.container_ports(station) == expected
    service = manifests.named("Service", station)["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == expected
    assert {port["name"] for port in service["ports"]} == set(expected)
    assert (service.get("clusterIP") == "None") == (station != "gateway")
    for probe in ("readinessProbe", "livenessProbe"):
        for kind in ("tcpSocket", "httpGet"):
            if kind in manifests.container(station)[probe]:
                assert manifests.container(station)[probe][kind]["port"] == main


@pytest.mark.parametrize("name", [*STATIONS, RANK])
def test_variables_are_settings_and_are_taken(
    manifests: Manifests, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if name not in manifests.workloads:
        assert name == RANK
        return
    station, given = name.removesuffix("-rank"), manifests.environment(name)
    known = {f"{SHARED_PREFIX}{field}".upper() for field in SHARED_FIELDS} | {
        f"{SHARED_PREFIX}{each}_{field}".upper()
        for each, settings in SETTINGS.items()
        for field in settings.model_fields
    }
    assert {variable for variable in given if variable.startswith(SHARED_PREFIX)} <= known
    assert {variable for variable in given if not variable.startswith(SHARED_PREFIX)} <= {"HF_TOKEN_PATH"}
    if "POSTROAD_GATEWAY_API_KEYS_FILE" in given:
        given["POSTROAD_GATEWAY_API_KEYS_FILE"] = str(tmp_path / "keys.toml")
        (tmp_path / "keys.toml").write_text('[keys.one]\nkey = "sk-0123456789abcdef"\n')
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    settings, own = SETTINGS[station].parse([]), f"{SHARED_PREFIX}{station.upper()}_"
    for variable, value in given.items():
        if variable.startswith(own):
            assert getattr(settings, variable.removeprefix(own).lower()) is not None, (variable, value)


def test_addresses_are_of_services_that_exist(manifests: Manifests) -> None:
    replicas = manifests.workloads["engine"]["spec"]["replicas"]
    gateway = manifests.environment("gateway")
    for station in ("tokenizer", "detokenizer"):
        port = SETTINGS[station].model_fields["port"].default
        assert gateway[f"POSTROAD_GATEWAY_{station.upper()}"] == f"dns:///{station}:{port}"
    port = EngineSettings.model_fields["port"].default
    engine = manifests.workloads["engine"]["spec"]
    pods = [f"engine-{ordinal}.{engine['serviceName']}:{port}" for ordinal in range(replicas)]
    assert gateway["POSTROAD_GATEWAY_ENGINES"].split(",") == pods
    assert manifests.named("Service", engine["serviceName"])["spec"]["publishNotReadyAddresses"]
    for station in ("tokenizer", "detokenizer"):
        assert manifests.environment(station)[f"POSTROAD_{station.upper()}_ENGINE"] == pods[0]


ROAD = {
    ("gateway", "tokenizer"): 50051,
    ("gateway", "detokenizer"): 50053,
    ("gateway", "engine"): 50052,
    ("tokenizer", "engine"): 50052,
    ("detokenizer", "engine"): 50052,
}


def test_the_policies_allow_the_road_and_nothing_else(manifests: Manifests) -> None:
    allowed = {
        (caller, station, port)
        for caller in STATIONS
        for station in STATIONS
        for port in manifests.container_ports(station).values()
        if manifests.may_call(manifests.pod_labels(caller), POSTROAD, station, port)
    }
    assert allowed == {(caller, station, port) for (caller, station), port in ROAD.items()}
    stranger, elsewhere = {"app": "stranger"}, {"kubernetes.io/metadata.name": "default"}
    for namespace in (POSTROAD, elsewhere):
        reached = {
            (station, port)
            for station in STATIONS
            for port in manifests.container_ports(station).values()
            if manifests.may_call(stranger, namespace, station, port)
        }
        assert reached == {("gateway", 8000)}


def test_the_ranks_of_an_engine_are_set_up_alike_and_may_connect(manifests: Manifests) -> None:
    engine = manifests.workloads["engine"]["spec"]
    given = manifests.environment("engine")
    size = int(given.get("POSTROAD_ENGINE_TENSOR_PARALLEL_SIZE", "1"))
    assert (RANK in manifests.workloads) == (size > 1)
    if size == 1:
        return
    rank = manifests.workloads[RANK]["spec"]
    assert engine["replicas"] == rank["ordinals"]["start"] == 1
    assert rank["replicas"] == size - 1
    of_rank = manifests.environment(RANK)
    own = {
        "POSTROAD_ENGINE_RANK": "1",
        "POSTROAD_ENGINE_LEADER": f"engine-0.engine:{manifests.container_ports('engine')['grpc']}",
    }
    assert of_rank == {**given, **own}
    differ = {
        key
        for key in (*manifests.container(RANK),)
        if manifests.container(RANK)[key] != manifests.container("engine")[key]
    }
    assert differ == {"env", "readinessProbe"}
    probe = manifests.container(RANK)["readinessProbe"]["exec"]["command"]
    assert probe == COMPOSE["services"]["engine-rank-1"]["healthcheck"]["test"][1:]
    any_port = 40_000
    for caller, station in (("engine", RANK), (RANK, "engine"), (RANK, RANK)):
        assert manifests.may_call(manifests.pod_labels(caller), POSTROAD, station, any_port)
    for caller in ("gateway", "tokenizer", "detokenizer"):
        assert not manifests.may_call(manifests.pod_labels(caller), POSTROAD, RANK, 50052)


def test_every_station_may_ask_for_names(manifests: Manifests) -> None:
    policy = manifests.named("NetworkPolicy", "stations")["spec"]
    assert manifests.selected(policy["podSelector"]["matchLabels"]) == set(manifests.workloads)
    [names] = policy["egress"]
    assert {(port["protocol"], port["port"]) for port in names["ports"]} == {("UDP", 53), ("TCP", 53)}


def test_the_operator_s_monitor_finds_every_station_and_may_scrape_it(manifests: Manifests) -> None:
    """Its schema comes with the operator: here the fields are held against those that its documentation has."""
    monitors = manifests.of("ServiceMonitor")
    if not monitors:
        assert "ServiceMonitor" not in {one["kind"] for one in manifests.objects}
        return
    [monitor] = monitors
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    spec = monitor["spec"]
    assert set(spec) <= {"selector", "endpoints", "targetLabels", "namespaceSelector", "jobLabel"}
    scraped: dict[str, int] = {}
    for endpoint in spec["endpoints"]:
        assert set(endpoint) <= {"port", "path", "interval", "scrapeTimeout"}
        assert re.fullmatch(r"\d+s", endpoint["interval"])
        assert endpoint.get("path", "/metrics") == "/metrics"
        for service in manifests.of("Service"):
            if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items():
                assert set(spec["targetLabels"]) <= set(service["metadata"]["labels"])
                for port in service["spec"]["ports"]:
                    if port["name"] == endpoint["port"]:
                        scraped[service["metadata"]["name"]] = port["port"]
    assert scraped == {"gateway": 8000, "tokenizer": 9461, "engine": 9462, "detokenizer": 9463}
    prometheus, namespace = {"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"}
    assert all(manifests.may_call(prometheus, namespace, station, port) for station, port in scraped.items())


def has_gpu(manifests: Manifests, name: str) -> bool:
    return "nvidia.com/gpu" in manifests.container(name)["resources"]["limits"]


def test_ranks_on_gpus_have_one_each_and_memory_to_share_as_in_compose(manifests: Manifests) -> None:
    for name, workload in manifests.workloads.items():
        if not has_gpu(manifests, name):
            assert manifests.environment(name).get("POSTROAD_ENGINE_DEVICE") is None
            continue
        assert workload["kind"] == "StatefulSet"
        assert manifests.container(name)["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert manifests.environment(name)["POSTROAD_ENGINE_DEVICE"] == "cuda"
        [shm] = [volume for volume in manifests.pod(name)["volumes"] if volume["name"] == "shm"]
        size = COMPOSE_GPU["services"]["engine"]["shm_size"]
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": size.replace("gb", "Gi")}


@pytest.mark.parametrize("station", STATIONS)
def test_every_station_is_confined_as_in_compose(manifests: Manifests, station: str) -> None:
    pod, container = manifests.pod(station), manifests.container(station)
    assert pod["automountServiceAccountToken"] is False
    # Else a service called postroad-gateway would set POSTROAD_GATEWAY_PORT, to what is no port.
    assert pod["enableServiceLinks"] is False
    uid = int(re.findall(r"useradd --uid (\d+)", DOCKERFILE)[0])
    context = pod["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["fsGroup"]) == (True, uid, uid)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert COMPOSE["services"][station]["read_only"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": COMPOSE["services"][station]["cap_drop"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    volumes = [
        volume.split(":")[1] for volume in COMPOSE["services"][station].get("volumes", ()) if ":ro" not in volume
    ]
    shared_memory = {"/dev/shm"} if has_gpu(manifests, station) else set()
    assert writable == {*COMPOSE["services"][station]["tmpfs"], *volumes, *shared_memory}


@pytest.mark.parametrize("station", STATIONS)
def test_limits_images_and_times_are_those_of_compose(manifests: Manifests, station: str) -> None:
    service, container = COMPOSE["services"][station], manifests.container(station)
    if has_gpu(manifests, station):
        service = service | COMPOSE_GPU["services"][station]
    default = re.fullmatch(r"\$\{\w+:-(\d+)g\}", service["mem_limit"])
    assert default is not None
    assert container["resources"]["limits"]["memory"] == f"{default[1]}Gi"
    image = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", service["image"]).split(":")[0]
    assert container["image"].split(":")[0] == image
    pause = int(
        container.get("lifecycle", {"preStop": {"exec": {"command": ["", "0"]}}})["preStop"]["exec"]["command"][1]
    )
    assert f"{manifests.pod(station)['terminationGracePeriodSeconds'] - pause}s" == service["stop_grace_period"]


@pytest.mark.parametrize("station", STATIONS)
def test_readiness_asks_as_the_image_s_health_check_does(manifests: Manifests, station: str) -> None:
    target = re.split(r"^FROM base AS ", DOCKERFILE, flags=re.M)
    [stage] = [text for text in target if text.startswith(f"{station}\n")]
    command = json.loads(re.findall(r"^    CMD (\[.*\])$", stage, flags=re.M)[0])
    assert manifests.container(station)["readinessProbe"]["exec"]["command"] == command


def test_secrets_are_mounted_where_the_variables_say(manifests: Manifests) -> None:
    for station in STATIONS:
        mounts = {mount["name"]: mount["mountPath"] for mount in manifests.container(station)["volumeMounts"]}
        folders = {mounts[volume["name"]] for volume in manifests.pod(station)["volumes"] if "secret" in volume}
        named = {
            value.rpartition("/")[0]
            for name, value in manifests.environment(station).items()
            if value.startswith("/run/secrets/")
        }
        assert folders == named
