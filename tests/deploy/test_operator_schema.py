"""The ServiceMonitor against the schema of Prometheus' operator, which an npm package has."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import KUBERNETES, Object
from tests.support.node import NodeProject

pytestmark = pytest.mark.clients
MONITOR = KUBERNETES / "components" / "monitoring" / "service-monitor.yaml"
Validate = Callable[[Object], str]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    project = NodeProject.install(Path(__file__).parent / "operator", tmp_path_factory.mktemp("operator"))

    def validate(manifest: Object) -> str:
        done = subprocess.run(
            [project.node, "validate.mjs"],
            cwd=project.folder,
            input=json.dumps(manifest),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return str(json.loads(done.stdout)["errors"])

    return validate


@pytest.fixture
def monitor() -> Object:
    loaded: Object = yaml.safe_load(MONITOR.read_text())
    return loaded


def test_the_monitor_is_valid(errors: Validate, monitor: Object) -> None:
    assert errors(monitor) == ""


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"endpoints": [{"port": "metrics", "interval": "often"}]}, "interval"),
        ({"endpoints": "metrics"}, "endpoints"),
        ({"targetLabels": {"a": "b"}}, "targetLabels"),
    ],
)
def test_a_wrong_field_would_be_found(errors: Validate, monitor: Object, wrong: dict[str, Any], named: str) -> None:
    assert named in errors({**monitor, "spec": {**monitor["spec"], **wrong}})
