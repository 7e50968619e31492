"""A supervisor over small services: `python -m tests.launcher.fake_road RUN_DIR READY_TIMEOUT NAME=CODE …`.

Each CODE is Python that the service NAME runs. The road is ready once every name in the services' folder RUN_DIR/up has
a file; services make theirs by `up()`. The first service is the entrance.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.launcher.logs import MergedLog
from services.launcher.process import ServiceSpec
from services.launcher.supervisor import RestartPolicy, Supervisor, supervise

PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
RUN_DIR, NAME = Path(sys.argv[1]), sys.argv[2]

def up():
    (RUN_DIR / 'up' / NAME).touch()

def runs():
    'How often this service was started, this time included.'
    counter = RUN_DIR / f'{NAME}.runs'
    with counter.open('a') as file:
        file.write('.')
    return len(counter.read_text())

def serve():
    'Until SIGTERM, as a station: exit code 0.'
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    up()
    while True:
        signal.pause()
"""


async def main(run_dir: Path, ready_timeout: float, services: list[str]) -> int:
    (run_dir / "up").mkdir(parents=True, exist_ok=True)
    specs = []
    for number, service in enumerate(services):
        name, code = service.split("=", 1)
        argv = (sys.executable, "-u", "-c", PRELUDE + code, str(run_dir), name)
        specs.append(ServiceSpec(name, argv, entrance=number == 0))
    log = MergedLog(run_dir / "logs", [spec.name for spec in specs], sys.stdout, "json")

    async def why_not_ready() -> str:
        return " ".join(spec.name for spec in specs if not (run_dir / "up" / spec.name).exists())

    supervisor = Supervisor(
        specs,
        log,
        run_dir,
        why_not_ready=why_not_ready,
        on_ready=lambda: None,
        ready_timeout=ready_timeout,
        stop_timeout=1.0,
        policy=RestartPolicy(first_delay=0.05),
        told_every=0.3,
    )
    return await supervise(supervisor, log)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])))
