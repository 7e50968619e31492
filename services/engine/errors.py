"""Why an engine cannot start, beside what is wrong with a model."""

from __future__ import annotations


class StartupError(Exception):
    """The settings do not fit the model or the machine; the message says how."""


class NativeNotInstalled(StartupError):
    """The package of the native executor is not there, or was built for another Python."""
