"""Generates services/pb from protos/. Used by `make protos` and, as a hatch build hook, by the package build."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
OUT = ROOT / "services" / "pb"
PACKAGE = "services.pb"


def generate() -> None:
    """Writes message, stub and type files of every .proto to services/pb/. Raises RuntimeError when protoc fails."""
    from importlib.resources import files  # noqa: PLC0415

    from grpc_tools import protoc  # noqa: PLC0415

    sources = sorted(str(p.relative_to(PROTOS)) for p in PROTOS.rglob("*.proto"))
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    well_known = str(files("grpc_tools") / "_proto")
    outputs = [f"--{kind}_out={OUT}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", *outputs, *sources]) != 0:
        raise RuntimeError("protoc failed; its messages stand above")
    # protoc writes imports relative to the proto root; here they live below a package.
    for path in [*OUT.rglob("*.py"), *OUT.rglob("*.pyi")]:
        text = path.read_text()
        path.write_text(re.sub(r"^from (postroad[\w.]*) import", rf"from {PACKAGE}.\1 import", text, flags=re.M))
    for folder in [OUT, *(p for p in OUT.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").touch()


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `make protos` runs without hatchling
    pass
else:

    class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Runs the generator before every wheel or editable build."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            generate()


if __name__ == "__main__":
    generate()
    sys.exit(0)
