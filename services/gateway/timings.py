"""Where the time of one request went, as the gateway sees it: phases that do not overlap and add up to the whole."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from services.gateway.deltas import EngineStart, StationTimes

PHASES = ("queue", "tokenise", "schedule_wait", "prefill", "decode", "detokenise", "hops", "send")

_NS_PER_MS, _US_PER_MS = 1e6, 1e3


@dataclass(slots=True)
class RunTimes:
    """Marks of one run, nanoseconds of time.monotonic_ns(); 0 for what has not happened.

    With a retry the marks are those of the last try.
    """

    generate_start: int = 0
    first_delta: int = 0
    generate_end: int = 0
    engine_start: EngineStart | None = None
    stations: StationTimes | None = None

    def phases(self) -> dict[str, float]:
        """Milliseconds per phase behind the gateway, as far as they are known by now."""
        if self.stations is not None:
            return self._all_phases(self.stations)
        if self.engine_start is not None:
            return {
                "schedule_wait": self.engine_start.schedule_wait_us / _US_PER_MS,
                "prefill": self.engine_start.prefill_us / _US_PER_MS,
            }
        return {}

    def _all_phases(self, stations: StationTimes) -> dict[str, float]:
        call_us = (self.generate_end - self.generate_start) / 1e3
        detokenizer_hop_us = max(0.0, call_us - stations.detokenizer_total_us)
        return {
            "schedule_wait": stations.schedule_wait_us / _US_PER_MS,
            "prefill": stations.prefill_us / _US_PER_MS,
            "decode": stations.decode_us / _US_PER_MS,
            "detokenise": stations.detokenize_us / _US_PER_MS,
            "hops": (stations.engine_hop_us + detokenizer_hop_us) / _US_PER_MS,
        }


@dataclass(slots=True)
class RequestTimes:
    """Marks of one request, nanoseconds of time.monotonic_ns(); 0 for what has not happened.

    What went before the last try of a run counts as `queue`. Of several runs the one that was waited for tells the
    phases: the last to end.
    """

    arrival: int = field(default_factory=time.monotonic_ns)
    tokenise_start: int = 0
    tokenise_end: int = 0
    end: int = 0
    runs: list[RunTimes] = field(default_factory=list)

    @property
    def telling_run(self) -> RunTimes:
        """The last run to end; while none has ended, the first with a token."""
        started = sorted(self.runs, key=lambda run: run.first_delta or math.inf)
        return max(started, key=lambda run: run.generate_end, default=RunTimes())

    def phases(self) -> dict[str, float]:
        """Milliseconds per phase, as far as they are known by now; after `end` their sum is `total`."""
        run = self.telling_run
        tokenise = self.tokenise_end - self.tokenise_start
        phases: dict[str, float] = {}
        if run.generate_start:
            phases["queue"] = (run.generate_start - self.arrival - tokenise) / _NS_PER_MS
        if self.tokenise_end:
            phases["tokenise"] = tokenise / _NS_PER_MS
        phases |= run.phases()
        if run.stations is not None:
            phases["send"] = ((self.end or time.monotonic_ns()) - run.generate_end) / _NS_PER_MS
        return phases

    @property
    def total(self) -> float:
        """Milliseconds from arrival to the end, or to now."""
        return ((self.end or time.monotonic_ns()) - self.arrival) / _NS_PER_MS

    @property
    def time_to_first_token(self) -> float | None:
        """Milliseconds from arrival to the first delta of any run."""
        first = min((run.first_delta for run in self.runs if run.first_delta), default=None)
        return None if first is None else (first - self.arrival) / _NS_PER_MS

    def server_timing(self) -> bytes:
        """The value of the header Server-Timing for what is known by now."""
        parts = [f"{name};dur={value:.3f}" for name, value in self.phases().items()]
        return ", ".join([*parts, f"total;dur={self.total:.3f}"]).encode()

    def as_json(self) -> dict[str, float]:
        """The `timings` object beside usage, milliseconds."""
        return {f"{name}_ms": round(value, 3) for name, value in [*self.phases().items(), ("total", self.total)]}

    def spans(self) -> list[tuple[str, int, int]]:
        """Name, start and end of the gateway's own phases, nanoseconds of time.time_ns()."""
        run = self.telling_run
        to_wall = time.time_ns() - time.monotonic_ns()
        marks = (
            ("queue", self.arrival, self.tokenise_start or run.generate_start),
            ("tokenise", self.tokenise_start, self.tokenise_end),
            ("generate", run.generate_start, run.generate_end),
            ("send", run.generate_end, self.end),
        )
        return [(name, start + to_wall, end + to_wall) for name, start, end in marks if start and end]
