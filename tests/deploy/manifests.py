"""The manifests of deploy/kubernetes as objects, and what of Kubernetes' rules the tests need."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
STATIONS = ("gateway", "tokenizer", "detokenizer", "engine")
Object = dict[str, Any]
Labels = dict[str, str]


def kustomization(folder: Path) -> Object:
    loaded: Object = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return loaded


def written(folder: Path) -> list[Object]:
    """What the resources of a folder's kustomization say in their files, before kustomize changes anything."""
    objects: list[Object] = []
    for resource in kustomization(folder)["resources"]:
        path = (folder / resource).resolve()
        objects += written(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    return objects


def rendered(folder: Path) -> list[Object]:
    """What `kubectl apply -k` would apply."""
    command = ["kubectl", "kustomize", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return list(yaml.safe_load_all(output))


def with_all_components(folder: Path) -> Path:
    """A copy of the manifests in `folder`, whose cpu overlay has the components that its comments name."""
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    overlay = copy / "overlays" / "cpu" / "kustomization.yaml"
    text, count = re.subn(r"^# (components:|  - \.\./\.\./components/)", r"\1", overlay.read_text(), flags=re.M)
    assert count == 1 + len(list((copy / "components").iterdir())), "the overlay's comments do not name every component"
    overlay.write_text(text)
    return overlay.parent


@dataclass(frozen=True)
class Manifests:
    """The objects of one cluster."""

    objects: list[Object]

    def of(self, *kinds: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object:
        [found] = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        return found

    @property
    def workloads(self) -> dict[str, Object]:
        """Deployments and StatefulSets by name."""
        return {one["metadata"]["name"]: one for one in self.of("Deployment", "StatefulSet")}

    def pod(self, name: str) -> Object:
        """A workload's pod template: its spec."""
        spec: Object = self.workloads[name]["spec"]["template"]["spec"]
        return spec

    def container(self, name: str) -> Object:
        [container] = self.pod(name)["containers"]
        return dict(container)

    def environment(self, name: str) -> dict[str, str]:
        """A container's variables, those of its config maps included; its own go before."""
        given: dict[str, str] = {}
        container = self.container(name)
        for source in container["envFrom"]:
            reference = source["configMapRef"]
            maps = [one for one in self.of("ConfigMap") if one["metadata"]["name"] == reference["name"]]
            assert maps or reference.get("optional"), f"{name} reads a config map that is not there"
            for one in maps:
                given |= one["data"]
        return given | {entry["name"]: self._value(name, entry) for entry in container.get("env", ())}

    def _value(self, name: str, entry: Object) -> str:
        """Of a variable; its own ordinal for the first pod of a StatefulSet that asks for it."""
        if "value" in entry:
            return str(entry["value"])
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
        return str(self.workloads[name]["spec"]["ordinals"]["start"])

    def pod_labels(self, name: str) -> Labels:
        labels: Labels = self.workloads[name]["spec"]["template"]["metadata"]["labels"]
        return labels

    def selected(self, selector: Labels) -> set[str]:
        """The workloads whose pods have these labels."""
        return {name for name in self.workloads if selector.items() <= self.pod_labels(name).items()}

    def container_ports(self, name: str) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container(name)["ports"]}

    def may_call(self, caller: Labels, namespace: Labels, station: str, port: int) -> bool:
        """Whether the policies let a pod of these labels reach a station's port. Both ends must allow it."""
        incoming = any(
            any(_matches(peer, caller, namespace) for peer in rule.get("from", [{}])) and _has_port(rule, port)
            for rule in self._rules(self.pod_labels(station), "Ingress")
        )
        if not self.selected(caller):  # not one of ours: its own policies are not our affair
            return incoming
        here = {"kubernetes.io/metadata.name": "postroad"}
        outgoing = any(
            any(_matches(peer, self.pod_labels(station), here) for peer in rule.get("to", [{}]))
            and _has_port(rule, port)
            for rule in self._rules(caller, "Egress")
        )
        return incoming and outgoing

    def _rules(self, labels: Labels, direction: str) -> Iterator[Object]:
        """Of all policies for a pod. There must be one, or everything is allowed."""
        policies = [
            one["spec"]
            for one in self.of("NetworkPolicy")
            if one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
            and direction in one["spec"]["policyTypes"]
        ]
        assert policies, f"no policy restrains {labels}"
        for policy in policies:
            yield from policy.get(direction.lower(), ())


def _matches(peer: Object, labels: Labels, namespace: Labels) -> bool:
    """An empty peer is anybody; one without a namespaceSelector is of the policy's own namespace."""
    if not peer:
        return True
    wanted = peer.get("podSelector", {}).get("matchLabels", {})
    if "namespaceSelector" not in peer:
        return namespace.get("kubernetes.io/metadata.name") == "postroad" and wanted.items() <= labels.items()
    spaces = peer["namespaceSelector"].get("matchLabels", {})
    return bool(spaces.items() <= namespace.items() and wanted.items() <= labels.items())


def _has_port(rule: Object, port: int) -> bool:
    ports = rule.get("ports")
    return ports is None or any(one["protocol"] == "TCP" and one["port"] == port for one in ports)
