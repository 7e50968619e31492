"""A recorder as strict as a CUDA graph: a replay runs the recorded operations on the recorded tensors, and no Python.

What a function would read from the device while it is recorded ends the recording, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


@dataclass
class _Tape(TorchDispatchMode):
    calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in _READS, f"{func} waits for the device"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            for recorded, again in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(recorded, Tensor) and recorded.data_ptr() != again.data_ptr():  # no view, not in place
                    recorded.copy_(again)


@dataclass
class _Recording:
    tape: _Tape
    name: str
    log: list[str]

    def replay(self) -> None:
        self.log.append(f"replay {self.name}")
        self.tape.replay()

    def reset(self) -> None:
        self.log.append(f"reset {self.name}")
        self.tape.calls.clear()


@dataclass
class RecorderOnCpu:
    """Implements `Recorder`. `log` says what happened, with the number of rows of each recording."""

    log: list[str] = field(default_factory=list)

    def warm_up(self, run: Callable[[], Tensor]) -> None:
        self.log.append(f"warm up {len(run())}")

    def record(self, run: Callable[[], Tensor]) -> tuple[_Recording, Tensor]:
        with _Tape() as tape:
            output = run()
        self.log.append(f"record {len(output)}")
        return _Recording(tape, str(len(output)), self.log), output
