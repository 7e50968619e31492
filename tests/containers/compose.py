"""The product's own docker-compose.yml, brought up as a project of its own beside whatever else runs."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT
from tests.support.ports import free_ports
from tests.support.processes import wait_until

PROJECT = "postroad-test"
NETWORK = f"{PROJECT}_stations"
GRPC_PORTS = {"tokenizer": 50051, "engine": 50052, "detokenizer": 50053}
METRICS_PORTS = {"tokenizer": 9461, "engine": 9462, "detokenizer": 9463, "gateway": 8000}
GATEWAYS = 2  # as many ports are published
UP_SECONDS = 300
BUILD_SECONDS = 1800


def docker(*args: str, timeout: float = 120) -> str:
    """Runs the docker command and returns what it printed. Raises AssertionError with its errors."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
    assert done.returncode == 0, f"docker {' '.join(args)}: {done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Container:
    """One running container, as it was when it was inspected."""

    id: str
    service: str
    pid: int  # of its main process, on the host
    started: str
    address: str  # in the stations' network
    published: str  # host:port on the host; "" for none

    def kill(self) -> None:
        """kill -9 of the main process: a crash, unlike `docker kill`, upon which nothing is restarted."""
        os.kill(self.pid, signal.SIGKILL)

    @contextmanager
    def cut_off(self, *aliases: str) -> Iterator[None]:
        """Out of the stations' network meanwhile; in it again under `aliases`."""
        docker("network", "disconnect", "--force", NETWORK, self.id)
        try:
            yield
        finally:
            docker("network", "connect", *(f"--alias={alias}" for alias in aliases), NETWORK, self.id)


class Compose:
    """The project. `url` and `address` are what the end-to-end tests' client needs."""

    def __init__(self) -> None:
        first = _consecutive_free_ports(GATEWAYS)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("POSTROAD_")}
        self._env = {
            **clean,
            "POSTROAD_IMAGE_PREFIX": "postroad-test",
            "POSTROAD_PUBLISH": f"127.0.0.1:{first}-{first + GATEWAYS - 1}",
            "POSTROAD_ENGINE_MEMORY": "4g",
        }
        self._overrides: tuple[Path, ...] = ()

    def with_settings(self, **settings: str) -> Compose:
        """The same project with other variables."""
        other = copy.copy(self)
        other._env = {**self._env, **settings}
        return other

    def with_overrides(self, *files: Path) -> Compose:
        """The same project with further compose files."""
        other = copy.copy(self)
        other._overrides = files
        return other

    def run(self, *args: str, timeout: float = 120) -> str:
        """Runs docker compose for the project. Raises AssertionError with its errors."""
        files = [f"--file={path}" for path in (ROOT / "docker-compose.yml", *self._overrides)]
        command = ["docker", "compose", "--project-name", PROJECT, *files, *args]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, env=self._env
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
        return done.stdout

    def build(self) -> None:
        """Builds the images."""
        self.run("build", timeout=BUILD_SECONDS)

    def build_elsewhere(self, folder: Path) -> dict[str, bool]:
        """Builds the images from another folder's files: the steps, and whether each was taken from the cache."""
        command = ["docker", "compose", "--progress=plain", "--project-name", PROJECT, "build"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, cwd=folder, env=self._env
        )
        assert done.returncode == 0, done.stderr[-4000:]
        log = done.stdout + done.stderr
        steps = dict(re.findall(r"^#(\d+) \[\S+ \S+ +\d+/\d+\] (.*)$", log, flags=re.M))
        cached = set(re.findall(r"^#(\d+) CACHED$", log, flags=re.M))
        return {text: number in cached for number, text in steps.items()}

    def up(self, **scale: int) -> None:
        """Brings everything up and waits until it is healthy; one container a service unless `scale` says more."""
        scales = [f"--scale={service}={count}" for service, count in scale.items()]
        self.run("up", "--detach", "--wait", f"--wait-timeout={UP_SECONDS}", *scales, timeout=UP_SECONDS + 30)

    def down(self) -> None:
        """Takes everything away, volumes included."""
        self.run("down", "--volumes", "--remove-orphans", "--timeout=3")

    def containers(self, service: str) -> list[Container]:
        """The running containers of a service."""
        ids = self.run("ps", "--quiet", "--status=running", service).split()
        return [_container(service, found) for found in json.loads(docker("inspect", *ids))] if ids else []

    def container(self, service: str) -> Container:
        """The only one."""
        (only,) = self.containers(service)
        return only

    def logs(self, service: str) -> str:
        """What a service's containers wrote."""
        return self.run("logs", "--no-color", "--no-log-prefix", service)

    @property
    def url(self) -> str:
        """Of the first gateway."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Of all gateways."""
        return [f"http://{container.published}" for container in self.containers("gateway")]

    def address(self, service: str) -> str:
        """host:port of the service's first container, reached through the network of the stations."""
        return f"{self.containers(service)[0].address}:{GRPC_PORTS[service]}"

    def wait_healthy(self, services: Iterable[str]) -> None:
        """Waits until every container of the services is healthy."""
        for service in services:
            wait_until(lambda service=service: self._healthy(service), f"{service} is healthy", 90)  # type: ignore[misc]

    def _healthy(self, service: str) -> bool:
        states = [json.loads(line) for line in self.run("ps", "--format=json", service).splitlines()]
        return bool(states) and all(state["Health"] == "healthy" for state in states)


def _container(service: str, found: dict[str, Any]) -> Container:
    networks = found["NetworkSettings"]["Networks"]
    bindings = found["NetworkSettings"]["Ports"].get("8000/tcp") or [{"HostIp": "", "HostPort": ""}]
    return Container(
        id=found["Id"],
        service=service,
        pid=found["State"]["Pid"],
        started=found["State"]["StartedAt"],
        address=networks[NETWORK]["IPAddress"] if NETWORK in networks else "",
        published=f"{bindings[0]['HostIp']}:{bindings[0]['HostPort']}".strip(":"),
    )


def _consecutive_free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on."""
    for _ in range(100):
        (first,) = free_ports(1)
        try:
            free = [_is_free(first + offset) for offset in range(count)]
        except OverflowError:  # beyond the last port
            continue
        if all(free):
            return first
    raise AssertionError("no neighbouring free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
