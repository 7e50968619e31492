"""Where a request's time went, as the detokenizer can tell."""

from __future__ import annotations

import time
from dataclasses import dataclass

from services.pb.postroad.v1 import common_pb2, engine_pb2


@dataclass(slots=True)
class Timeline:
    """Moments of one request, nanoseconds of time.perf_counter_ns(); 0 until they happen."""

    arrival: int
    engine_called: int = 0
    first_token: int = 0
    last_token: int = 0
    engine_ended: int = 0  # the engine's terminal event, or the token after which its work was not needed any more

    @classmethod
    def begin(cls) -> Timeline:
        return cls(time.perf_counter_ns())

    def token_arrived(self) -> None:
        self.last_token = time.perf_counter_ns()
        self.first_token = self.first_token or self.last_token


def complete_timings(
    timeline: Timeline, start: engine_pb2.StreamStart, end: engine_pb2.StreamEnd | None
) -> common_pb2.Timings:
    """The timings of a request whose last text goes out now.

    `end` is the engine's terminal event. None: a stop string ended the text before it came; decode is then what passed
    between the arrivals of the first and the last token.
    """
    timings = common_pb2.Timings()
    if end is not None:
        timings.CopyFrom(end.timings)
    else:
        timings.schedule_wait_us = start.schedule_wait_us
        timings.prefill_us = start.prefill_us
        timings.decode_us = (timeline.last_token - timeline.first_token) // 1000
    total_us = (time.perf_counter_ns() - timeline.arrival) // 1000
    engine_call_us = (timeline.engine_ended - timeline.engine_called) // 1000
    in_engine_us = timings.schedule_wait_us + timings.prefill_us + timings.decode_us
    timings.detokenizer_total_us = total_us
    timings.detokenize_us = max(0, total_us - engine_call_us)
    timings.engine_hop_us = max(0, engine_call_us - in_engine_us)
    return timings
