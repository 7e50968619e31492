"""Keeps the services running: starts all, restarts one that dies, stops all."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.launcher.logs import MergedLog, last_error
from services.launcher.process import Exit, ServiceProcess, ServiceSpec

POLL_SECONDS = 0.1
GIVE_UP_SECONDS = 5.0  # that the others get to stop when the launcher gives up: what they wait for may never come back
WAITING_TOLD_EVERY = 30.0  # seconds, while the road is not ready


class LauncherError(Exception):
    """Why the launcher gave up; the message is for people."""


class CannotStart(LauncherError):
    """The system makes no process for a service."""


class DiedBeforeReady(LauncherError):
    """A service ended before the road was ready for the first time: a restart would not help."""


class DiesTooOften(LauncherError):
    """A service ended again and again."""


class NotReadyInTime(LauncherError):
    """The services run, and no request would be served yet."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a service that died is started again. Times in seconds."""

    first_delay: float = 0.5
    max_delay: float = 10.0
    max_deaths: int = 3  # within `window`: the launcher gives up
    window: float = 60.0


class Deaths:
    """The recent deaths of one service, and what follows from the latest."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque(maxlen=policy.max_deaths)
        self._in_a_row = 0

    def note(self, now: float, uptime: float) -> float | None:
        """Notes a death at `now` (monotonic) after `uptime`. The delay of the restart, or None: too many, give up."""
        self._times.append(now)
        if len(self._times) == self._policy.max_deaths and now - self._times[0] <= self._policy.window:
            return None
        self._in_a_row = 1 if uptime >= self._policy.window else self._in_a_row + 1
        return min(self._policy.max_delay, self._policy.first_delay * 2.0 ** (self._in_a_row - 1))


class Supervisor:
    """Runs the services until `request_stop` or until it has to give up.

    `why_not_ready` says what is missing for a request to be served now, or nothing: ''. `on_ready` is called the first
    time that nothing is. Times are in seconds; what is missing is told every `told_every`. The pid of each running
    service stands in `run_dir`/NAME.pid.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        log: MergedLog,
        run_dir: Path,
        *,
        why_not_ready: Callable[[], Awaitable[str]],
        on_ready: Callable[[], None],
        ready_timeout: float,
        stop_timeout: float,
        policy: RestartPolicy,
        told_every: float = WAITING_TOLD_EVERY,
    ) -> None:
        self._specs = specs
        self._log = log
        self._run_dir = run_dir
        self._why_not_ready = why_not_ready
        self._on_ready = on_ready
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._policy = policy
        self._told_every = told_every
        self._missing = ""  # what was, when it was asked last
        self._running: dict[str, ServiceProcess] = {}
        self._was_ready = False
        self._unready = asyncio.Event()
        self._stop = asyncio.Event()
        self.killed = False  # an interrupt ended the services while they were stopping

    def request_stop(self) -> None:
        """What SIGTERM and SIGHUP do: stop in order. Once more means the same: who stops a whole process group, or
        closes a terminal, often sends them twice."""
        if not self._stop.is_set():
            self._log.say("stopping; a second Ctrl-C kills at once", at_most_s=self._stop_timeout)
            self._stop.set()

    def interrupt(self) -> None:
        """What SIGINT does: stop in order, and kill what is stopping already."""
        if not self._stop.is_set():
            self.request_stop()
            return
        self.killed = True
        for process in self._running.values():
            process.kill()

    async def run(self) -> None:
        """Returns after an asked-for stop. Raises LauncherError when it gave up. No process is left either way."""
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs]
        watcher = asyncio.create_task(self._watch_readiness())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([stop, watcher, *keepers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            grace = self._stop_timeout if self._stop.is_set() else min(self._stop_timeout, GIVE_UP_SECONDS)
            self._stop.set()
            watcher.cancel()
            await self._stop_processes(grace)
            results = await asyncio.gather(watcher, *keepers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _keep(self, spec: ServiceSpec) -> None:
        """Starts one service and starts it again when it dies, until the stop."""
        deaths = Deaths(self._policy)
        while not self._stop.is_set():
            started = time.monotonic()
            ended = await self._run_once(spec)
            if self._stop.is_set():
                return
            now = time.monotonic()
            # The lines themselves were shown as they came.
            error = last_error(ended.last_lines)
            self._log.say(f"{spec.name} died ({ended})", level="error", **({"last_error": error} if error else {}))
            why = f": {error}" if error else ""
            if not self._was_ready:
                raise DiedBeforeReady(f"{spec.name} died before it was ever ready ({ended}){why}")
            delay = deaths.note(now, uptime=now - started)
            if delay is None:
                times, window = self._policy.max_deaths, self._policy.window
                raise DiesTooOften(f"{spec.name} died {times} times within {window:g} s (the last time: {ended}){why}")
            self._log.say(f"restarting {spec.name}", delay_s=delay)
            self._unready.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)

    async def _run_once(self, spec: ServiceSpec) -> Exit:
        try:
            process = await ServiceProcess.start(spec, lambda line: self._log.line(spec.name, line))
        except OSError as error:
            raise CannotStart(f"{spec.name} cannot be started: {error.strerror}") from error
        pid_file = self._run_dir / f"{spec.name}.pid"
        with suppress(OSError):  # a full disk is no reason to stop a service
            pid_file.write_text(f"{process.pid}\n")
        self._running[spec.name] = process
        self._log.say(f"started {spec.name}", pid=process.pid)
        try:
            if self._stop.is_set():  # asked for while the process was being started
                return await process.stop(self._stop_timeout)
            return await process.wait()
        finally:
            del self._running[spec.name]
            pid_file.unlink(missing_ok=True)

    async def _watch_readiness(self) -> None:
        """Says when the road is ready, the first time and after each restart."""
        started = time.monotonic()
        try:
            await asyncio.wait_for(self._until_ready(), self._ready_timeout)
        except TimeoutError:
            raise NotReadyInTime(f"not ready after {self._ready_timeout:g} s: {self._missing}") from None
        self._was_ready = True
        self._log.say("ready", seconds=round(time.monotonic() - started, 1))
        self._on_ready()
        while True:
            await self._unready.wait()
            self._unready.clear()
            await self._until_ready()
            self._log.say("ready again")

    async def _until_ready(self) -> None:
        told = time.monotonic()
        while missing := await self._what_is_missing():
            self._missing = missing
            if time.monotonic() - told >= self._told_every:
                told = time.monotonic()
                self._log.say("not ready yet", missing=missing)
            await asyncio.sleep(POLL_SECONDS)

    async def _what_is_missing(self) -> str:
        absent = [spec.name for spec in self._specs if spec.name not in self._running]
        return f"not started: {', '.join(absent)}" if absent else await self._why_not_ready()

    async def _stop_processes(self, grace: float) -> None:
        """The entrance first: the services behind it then have nothing left to finish."""
        for entrance in (True, False):
            names = [spec.name for spec in self._specs if spec.entrance is entrance]
            stopping = [self._running[name].stop(grace) for name in names if name in self._running]
            await asyncio.gather(*stopping)


async def supervise(supervisor: Supervisor, log: MergedLog) -> int:
    """Runs the supervisor with the signals that stop it; returns the launcher's exit code and closes the log."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, supervisor.interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.request_stop)
    try:
        await supervisor.run()
    except LauncherError as error:
        log.say(f"gave up: {error}", level="error")
        return 1
    finally:
        log.close()
    return 130 if supervisor.killed else 0
