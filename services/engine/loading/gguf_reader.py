"""Metadata of a GGUF file's own architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.engine.loading.errors import DamagedFile, UnsupportedArchitecture
from services.engine.loading.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class GgufReader:
    """The metadata under the architecture's own prefix."""

    file: GgufFile

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.file.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise DamagedFile(f"{self.file.path} lacks {self.file.architecture}.{key}")
        return value

    def count(self, key: str) -> int:
        if isinstance(value := self.require(key), list):
            raise UnsupportedArchitecture(f"{self.file.path.name} has a {key} for each layer; one for all is supported")
        return int(value)

    def kv_heads(self) -> int:
        return self.count("attention.head_count_kv" if self.get("attention.head_count_kv") else "attention.head_count")

    def head_dim(self) -> int:
        """Elements of a head."""
        head_dim = self.get("attention.key_length") or self.count("embedding_length") // self.count(
            "attention.head_count"
        )
        if self.file.architecture != "phi3" and self.get("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedArchitecture(f"{self.file.path.name} turns only a part of each head by rope")
        if self.get("attention.value_length", head_dim) != head_dim:
            raise UnsupportedArchitecture(f"{self.file.path.name} has values of another length than keys")
        return int(head_dim)
