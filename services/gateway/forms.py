"""The form that a request's output must have, in the gateway's own terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OutputForm:
    """One form. Exactly what the stations take; `param` is the client's field that asks for it."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    param: str
    text: str = ""  # of json_schema, regex and grammar
    choices: tuple[str, ...] = ()
