"""The thread that loads the model and then runs the engine's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from services.engine.core import EngineCore, StepReport
from services.engine.served_model import ServedModel

T = TypeVar("T")
Load = Callable[[Callable[[ServedModel], None]], EngineCore]


class EngineListener(Protocol):
    """Told what happens in the engine thread, on the event loop, in order."""

    def on_model(self, model: ServedModel) -> None:
        """The model's files are read; weights are not loaded yet."""

    def on_ready(self, core: EngineCore) -> None:
        """Sequences can be added."""

    def on_step(self, report: StepReport) -> None:
        """A step was run, or aborts took effect."""

    def on_death(self, error: BaseException) -> None:
        """The thread ended by an error. Nothing follows."""


class EngineThread:
    """Calls `load` and runs its result, in one thread: memory and thread pools of the model belong to the thread that
    made them. It is a daemon, so that a process that is told to stop need not wait for weights to load."""

    def __init__(self, load: Load, listener: EngineListener) -> None:
        """To be made, and started, on the event loop that shall call the listener."""
        self._load = load
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._core: EngineCore | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self, seconds: float) -> bool:
        """Ends the loop after the step in progress; gives up after `seconds`. False if the thread still runs: a thread
        that loads cannot be told to stop."""
        if self._core is not None:
            self._core.stop()
            await asyncio.to_thread(self._thread.join, seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._core = core = self._load(self._post(self._listener.on_model))
            self._post(self._listener.on_ready)(core)
            try:
                core.run(self._post(self._listener.on_step))
            finally:
                core.close()
        except BaseException as error:  # the thread's end is the engine's, whatever the reason
            self._post(self._listener.on_death)(error)

    def _post(self, callback: Callable[[T], None]) -> Callable[[T], None]:
        """A function for this thread that has the loop call `callback`; after the loop's end nobody listens."""

        def post(argument: T) -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, argument)

        return post
