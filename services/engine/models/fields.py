"""Fields of a Hugging Face config, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.engine.models.errors import InvalidConfigError


def integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive integer. A field that is absent or null takes the default, if there is one."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidConfigError(f"{key} must be a positive integer, not {value!r}")
    return value


def number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number. A field that is absent or null takes the default, if there is one."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidConfigError(f"{key} must be a positive number, not {value!r}")
    return float(value)


def optional_number(config: Mapping[str, Any], key: str) -> float | None:
    """A positive number, or None for a field that is absent or null."""
    return None if config.get(key) is None else number(config, key)


def numbers(config: Mapping[str, Any], key: str, length: int) -> tuple[float, ...]:
    """A list of `length` positive numbers."""
    values = config.get(key)
    if not isinstance(values, list) or len(values) != length:
        raise InvalidConfigError(f"{key} must be a list of {length} numbers")
    return tuple(number({f"{key}[{i}]": value}, f"{key}[{i}]") for i, value in enumerate(values))
