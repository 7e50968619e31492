"""What differs from layer to layer: how far back attention sees, and how positions turn queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.engine.models.errors import InvalidConfigError, UnsupportedModelError
from services.engine.models.families import Family
from services.engine.models.fields import integer
from services.engine.models.rope_config import RopeConfig, read_rope

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """`window`: keys that a token sees, itself included; None for all. `rope`: None where positions turn nothing."""

    window: int | None
    rope: RopeConfig | None


def read_layers(config: Mapping[str, Any], family: Family, head_dim: int, longest: int) -> tuple[LayerConfig, ...]:
    """`longest` is the longest sequence that will be served, tokens: a window that holds it cuts nothing.

    Raises UnsupportedModelError or InvalidConfigError.
    """
    rotates = _rotating_layers(config, family)
    ropes = _ropes(config, family, head_dim, longest)
    layers = []
    for kind, turned in zip(_layer_types(config, family, rotates), rotates, strict=True):
        window = integer(config, "sliding_window") if kind == _SLIDING else None
        if window is not None and window >= longest:
            window = None
        layers.append(LayerConfig(window, ropes[kind] if turned else None))
    return tuple(layers)


def _rotating_layers(config: Mapping[str, Any], family: Family) -> list[bool]:
    count = integer(config, "num_hidden_layers")
    if not family.nope_layers:
        return [True] * count
    if (given := config.get("no_rope_layers")) is not None:
        if not isinstance(given, list) or len(given) < count:
            raise InvalidConfigError(f"no_rope_layers must be a list of {count} numbers, one per layer")
        return [bool(turned) for turned in given[:count]]
    interval = integer(config, "no_rope_layer_interval", default=4)
    return [(index + 1) % interval != 0 for index in range(count)]


def _layer_types(config: Mapping[str, Any], family: Family, rotates: list[bool]) -> list[str]:
    expected = [_SLIDING if slides else _FULL for slides in _sliding_layers(config, family, rotates)]
    given = config.get("layer_types")
    if given is None:
        return expected
    if not isinstance(given, list) or len(given) != len(rotates):
        raise InvalidConfigError(f"layer_types must be a list of {len(rotates)} names, one per layer")
    free = family.windows not in ("none", "all")
    for kind, own in zip(given, expected, strict=True):
        if kind not in (_FULL, _SLIDING) or not (free or kind == own):
            raise UnsupportedModelError("layer_types", kind, (_FULL, _SLIDING) if free else (own,))
    return list(given)


def _sliding_layers(config: Mapping[str, Any], family: Family, rotates: list[bool]) -> list[bool]:
    count = len(rotates)
    has_window = config.get("sliding_window") is not None
    wants_window = has_window and bool(config.get("use_sliding_window"))
    match family.windows:
        case "none":
            return [False] * count
        case "all":
            return [has_window] * count
        case "after_max_window_layers":
            first = config.get("max_window_layers") or 0
            return [wants_window and index >= first for index in range(count)]
        case "without_rope":
            return [wants_window and not turned for turned in rotates]
        case "pattern":  # every so many layers one sees everything
            period = integer(config, "sliding_window_pattern", default=family.defaults["sliding_window_pattern"])
            return [has_window and (index + 1) % period != 0 for index in range(count)]


def _ropes(config: Mapping[str, Any], family: Family, head_dim: int, longest: int) -> dict[str, RopeConfig]:
    """By layer type. Where windows have a rope of their own, transformers 5 has `rope_parameters` for each."""
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = _FULL in fields or _SLIDING in fields
    everywhere = (fields.get(_FULL) or {}) if nested else fields
    partial = {**config, **everywhere}.get("partial_rotary_factor")
    if not family.partial_rotation and partial not in (None, 1, 1.0):
        raise UnsupportedModelError("partial_rotary_factor", partial)
    full = read_rope(everywhere, config, head_dim, longest)
    if not family.local_rope:
        return {_FULL: full, _SLIDING: full}
    base = config["rope_local_base_freq"] or family.defaults["rope_local_base_freq"]
    local = {"rope_theta": base, **((fields.get(_SLIDING) or {}) if nested else {})}
    return {_FULL: full, _SLIDING: read_rope(local, config, head_dim, longest)}
