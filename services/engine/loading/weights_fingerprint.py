"""Whether two processes have the same model: a digest of samples, so that it takes no reading of all the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.engine.loading.source import ModelSource

_SAMPLE_BYTES = 64 * 1024
_NUM_SAMPLES = 16  # per file, evenly spread; the first has the header with names and shapes


def weights_fingerprint(source: ModelSource) -> str:
    """SHA-256, hexadecimal, over config.json and, of each file with weights, its name, size and samples."""
    digest = hashlib.sha256()
    if source.kind == "gguf":
        _add(digest, source.path, name="model.gguf")  # the file itself may have any name
        return digest.hexdigest()
    digest.update((source.path / "config.json").read_bytes())
    for path in sorted(source.path.glob("*.safetensors")):
        _add(digest, path, name=path.name)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, path: Path, name: str) -> None:
    size = path.stat().st_size
    digest.update(f"\0{name}\0{size}\0".encode())
    with path.open("rb") as file:
        for sample in range(_NUM_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
