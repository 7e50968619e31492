"""The form that a request asks its output to have, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """One form. Requests with equal ones share a compiled grammar."""

    kind: FormKind
    text: str  # as the request has it; the choices as a JSON array; empty for json_object

    @property
    def param(self) -> str:
        """The field of GenerateRequest that asks for it."""
        return f"structured_output.{self.kind}"
