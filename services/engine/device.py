"""Where the model is computed: on the CPU, or on a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from services.engine import resources
from services.engine.errors import StartupError
from services.engine.settings import EngineSettings

Device = Literal["cpu", "cuda"]

_DEVICE_FILES = ("nvidiactl", "dxg")  # NVIDIA's driver, and what stands for it in Windows' Linux


def choose_device(settings: EngineSettings, dev: Path = Path("/dev")) -> Device:
    """For an executor that may be torch's. Raises StartupError where a device is asked for that is not there."""
    if settings.device == "cpu" or (settings.wants_native and not settings.needs_cuda):
        return "cpu"
    reason = why_no_cuda(dev)
    if reason and settings.needs_cuda:
        raise StartupError(f"{settings.needs_cuda} cannot be had: {reason}")
    return "cpu" if reason else "cuda"


def why_no_cuda(dev: Path = Path("/dev")) -> str:
    """Why there is no CUDA device; empty where there is one. A machine without a GPU is spared the import of torch."""
    if not any((dev / name).exists() for name in _DEVICE_FILES):
        return f"there is no GPU here, as {dev / _DEVICE_FILES[0]} is missing"
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return ""


def chosen_dtype(settings: EngineSettings, device: Device) -> resources.Dtype:
    """bfloat16 where the device computes in it, unless the settings name a type."""
    if device == "cpu" or settings.dtype != "auto":
        return resources.dtype(settings)
    import torch  # noqa: PLC0415

    return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"


def device_index(settings: EngineSettings, num_visible: int) -> int:
    """Which of the visible CUDA devices is this rank's: the only one, or that of its place among the ranks of this
    machine. Raises StartupError where there is none for it."""
    if num_visible == 1:
        return 0
    index = settings.rank % resources.local_ranks(settings)
    if index >= num_visible:
        raise StartupError(
            f"rank {settings.rank} needs CUDA device {index}, as {resources.local_ranks(settings)} ranks share this "
            f"machine (local-ranks), and there are {num_visible} devices"
        )
    return index
