"""What the ranks of a group must agree on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from services import __version__
from services.engine.device import choose_device, chosen_dtype
from services.engine.loading.source import ModelSource
from services.engine.loading.weights_fingerprint import weights_fingerprint
from services.engine.ranks.errors import RankRefused
from services.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Field for field `postroad.v1.RankIdentity`."""

    version: str
    tensor_parallel_size: int
    model_fingerprint: str
    dtype: str
    page_size: int
    max_model_len: int
    device: str
    quantization: str
    kv_cache_dtype: str

    @classmethod
    def of(cls, settings: EngineSettings, source: ModelSource) -> RankIdentity:
        """Reads samples of the model's files. Raises a LoadingError, or StartupError where a device is missing."""
        device = choose_device(settings)
        dtype = chosen_dtype(settings, device)
        return cls(
            version=__version__,
            tensor_parallel_size=settings.tensor_parallel_size,
            model_fingerprint=weights_fingerprint(source),
            dtype=dtype,
            page_size=settings.page_size,
            max_model_len=settings.max_model_len or 0,
            device=device,
            quantization="fp8" if settings.quantization == "fp8" else "none",
            kv_cache_dtype="fp8" if settings.kv_cache_dtype == "fp8" else dtype,
        )

    def require(self, other: RankIdentity, rank: int) -> None:
        """This is rank 0's. Raises RankRefused that names every field in which rank `rank` differs from it."""
        differences = [
            f"{_flag(field.name)} is {getattr(other, field.name)!r} there and {getattr(self, field.name)!r} at rank 0"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
        if differences:
            raise RankRefused(f"rank {rank} does not fit the group: {'; '.join(differences)}")


def _flag(name: str) -> str:
    return name.replace("_", "-")
