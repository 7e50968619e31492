"""What the settings leave to the machine: the type of weights and KV pool, threads, and the pool's size."""

from __future__ import annotations

from typing import Literal

from services.engine import hardware
from services.engine.errors import StartupError
from services.engine.settings import EngineSettings, NativeQuantization

KV_SHARE_OF_FREE_MEMORY = 0.25
GIB = 1 << 30

Dtype = Literal["float32", "bfloat16"]


def dtype(settings: EngineSettings) -> Dtype:
    """bfloat16 where the CPU computes in it, unless the settings name a type."""
    if settings.dtype == "auto":
        return "bfloat16" if hardware.computes_bfloat16() else "float32"
    return settings.dtype


def quantization(settings: EngineSettings) -> NativeQuantization:
    """The native executor's: what the settings say. `auto` is `none` where float32 is asked for, as exact results are
    wanted then, and on a CPU with a matrix unit, which multiplies bfloat16 faster than the executor does integers.
    """
    if settings.quantization == "auto" and (settings.dtype == "float32" or hardware.has_matrix_unit()):
        return "none"
    assert settings.quantization != "fp8", "fp8 is the torch executor's"
    return settings.quantization


def num_threads(settings: EngineSettings) -> int:
    """Threads of a step: of several ranks on this machine, each has its share of the cores."""
    return settings.threads or max(1, hardware.usable_cores() // local_ranks(settings))


def local_ranks(settings: EngineSettings) -> int:
    """Ranks that share this machine."""
    return settings.local_ranks or settings.tensor_parallel_size


def num_pages(settings: EngineSettings, page_bytes: int, still_to_load: int = 0) -> int:
    """Pages of the KV pool: its share of what is free once the weights are loaded, of which `still_to_load` bytes are
    not yet; of several ranks on this machine, each takes its part of that share. Raises StartupError if not a single
    page fits, and for a pool that the settings make larger than all of the memory.
    """
    # Its memory is taken page by page as it is used: too much would only show when the process is killed.
    room = "all of this machine's, or container's, {} of memory"
    asked_for = asked_pages(settings, page_bytes, hardware.all_memory(), room)
    if asked_for is not None:
        return asked_for
    free = max(0, hardware.free_memory() - still_to_load)
    return whole_pages(int(free * KV_SHARE_OF_FREE_MEMORY) // local_ranks(settings), page_bytes)


def asked_pages(settings: EngineSettings, page_bytes: int, room_bytes: int, room: str) -> int | None:
    """The pages that the settings ask for; None where they leave it open. Raises StartupError where the pool is larger
    than `room_bytes`, which `room` tells with {} for the size, and where it does not hold a page.
    """
    if settings.num_pages is not None:
        what, num_bytes = f"num-pages {settings.num_pages}", settings.num_pages * page_bytes
    elif settings.kv_cache_memory is not None:
        what, num_bytes = "kv-cache-memory", settings.kv_cache_memory
    else:
        return None
    if num_bytes > room_bytes:
        size = f"{room_bytes / GIB:.1f} GiB"
        raise StartupError(f"{what}: a KV pool of {num_bytes / GIB:.1f} GiB is more than {room.format(size)}")
    return whole_pages(num_bytes, page_bytes)


def whole_pages(budget: int, page_bytes: int) -> int:
    """Pages that `budget` bytes hold. Raises StartupError if that is not a single one."""
    if budget < page_bytes:
        raise StartupError(f"the KV pool's {budget} bytes do not hold one page of {page_bytes} bytes")
    return budget // page_bytes
