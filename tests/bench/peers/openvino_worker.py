"""Runs in OpenVINO's environment: `python -m tests.bench.peers.openvino_worker MODEL_FOLDER`.

Reads one run per line of standard input and writes its answers as one line of standard output, both JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from tests.bench.sse_client import Answer


@dataclass
class _Request:
    handle: Any
    answer: Answer

    def read(self) -> bool:
        """Takes what was generated since; whether it is finished."""
        if self.handle.can_read():
            for output in self.handle.read().values():
                self.answer.event_times.append(time.perf_counter())
                self.answer.completion_tokens += len(output.generated_ids)
        return str(self.handle.get_status()).endswith("FINISHED")


def pipeline(folder: str) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 3  # GB
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = True
    return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")


def answers(pipe: genai.ContinuousBatchingPipeline, run: dict[str, Any], first_id: int) -> list[Answer]:
    """At most `streams` requests at a time."""
    config = genai.GenerationConfig()
    config.max_new_tokens = run["output_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    waiting = list(enumerate(run["prompts"], start=first_id))
    running: list[_Request] = []
    finished: list[Answer] = []
    while waiting or running:
        while waiting and len(running) < run["streams"]:
            request_id, prompt = waiting.pop(0)
            sent = time.perf_counter()
            handle = pipe.add_request(request_id, ov.Tensor(np.array([prompt], np.int64)), config)
            running.append(_Request(handle, Answer(sent)))
        pipe.step()
        for request in [request for request in running if request.read()]:
            request.answer.ended = time.perf_counter()
            running.remove(request)
            finished.append(request.answer)
    return finished


def main() -> None:
    pipe = pipeline(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    first_id = 0
    for line in sys.stdin:
        run = json.loads(line)
        print(json.dumps([asdict(answer) for answer in answers(pipe, run, first_id)]), flush=True)
        first_id += len(run["prompts"])


if __name__ == "__main__":
    main()
