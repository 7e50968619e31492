"""What one more row in a decode step costs, learned from the steps themselves."""

from __future__ import annotations

_MEMORY = 0.98  # weight that a step keeps with each one after it: some fifty count
_ASSUMED_SHARE = 0.05  # of a step's fixed time that a row takes, until steps of different sizes tell
_TRUST = 16.0  # squared rows by which steps must differ before they outweigh that


class StepCost:
    """Fits seconds = fixed + per_row * rows to the last steps, by least squares.

    On a CPU the weights are read for one row as for many, so a few more rows cost little; once there are so many that
    computing takes the longer, each costs as much as the others.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0  # weighted sums
        self._seconds = 0.0
        self._squares = 0.0
        self._products = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """A step of decodes, guesses included, took so long."""
        self._weight = self._weight * _MEMORY + 1.0
        self._rows = self._rows * _MEMORY + rows
        self._seconds = self._seconds * _MEMORY + seconds
        self._squares = self._squares * _MEMORY + rows * rows
        self._products = self._products * _MEMORY + rows * seconds

    def share_of_rows(self, rows: int) -> float:
        """The part of a step's time that grows with its rows, 0 to 1.

        It is the price of a row in tokens: in the time that a row adds, a step without it makes so many.
        """
        per_row, fixed = self._fit()
        variable = per_row * rows
        return variable / (fixed + variable) if variable > 0.0 else 0.0

    def _fit(self) -> tuple[float, float]:
        """Seconds per row and seconds of a step without rows; neither is below 0."""
        if not self._weight:
            return _ASSUMED_SHARE, 1.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares - self._rows * rows
        covariance = self._products - self._rows * seconds
        assumed = _ASSUMED_SHARE * seconds / (1.0 + _ASSUMED_SHARE * rows)
        per_row = (covariance + _TRUST * assumed) / (spread + _TRUST)
        per_row = min(max(per_row, 0.0), seconds / rows)
        return per_row, seconds - per_row * rows
