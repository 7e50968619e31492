"""Why a model cannot be served: its config, or its weights."""

from __future__ import annotations

from collections.abc import Sequence


class ModelError(Exception):
    """The model cannot be served as it is. The message names the field or the tensor at fault."""


class InvalidConfigError(ModelError):
    """A field of the model's config is missing or makes no sense."""


class UnsupportedModelError(ModelError):
    """The config asks for something that the decoder does not compute; serving it would give wrong tokens.

    `feature` is the config's field, `value` what it asks for.
    """

    def __init__(self, feature: str, value: object, supported: Sequence[str] = ()) -> None:
        hint = f" (supported: {', '.join(supported)})" if supported else ""
        super().__init__(f"{feature} {value!r} is not supported{hint}")
        self.feature = feature
        self.value = value


class NotCovered(ModelError):
    """The native executor does not compute what the model or the settings ask for; the torch executor may.

    `feature` is the config's or the settings' field.
    """

    def __init__(self, feature: str, value: object) -> None:
        super().__init__(f"the native executor does not cover {feature} {value!r}")
        self.feature = feature
        self.value = value


class WeightError(ModelError):
    """The weights do not fit the config."""


class MissingWeightError(WeightError):
    """Tensors that the config calls for are not there."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"missing {_some(names)}")
        self.names = tuple(names)


class UnexpectedWeightError(WeightError):
    """A tensor that the config has no place for, or one that came twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unexpected tensor {name}: the config has no place for it, or it came twice")
        self.name = name


class WeightShapeError(WeightError):
    """A tensor of another shape than the config calls for."""

    def __init__(self, name: str, expected: Sequence[int], actual: Sequence[int]) -> None:
        super().__init__(f"tensor {name} has shape {list(actual)}, the config calls for {list(expected)}")
        self.name = name
        self.expected = tuple(expected)
        self.actual = tuple(actual)


def _some(names: Sequence[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {', '.join(names[:limit])}{more}"
