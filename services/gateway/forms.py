"""The form that a request's output must have, in the gateway's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class OutputForm:
    """One form. Exactly what the stations take; `param` is the client's field that asks for it.

    `parts`: the fields that schemas embedded in a JSON Schema come from, by the JSON Pointers that lead to them.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    param: str
    text: str = ""  # of json_schema, regex and grammar
    choices: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    def client_param(self, param: str) -> str:
        """The client's field that a station's error is about. param: `structured_output.…`, maybe `#` and a pointer."""
        return self.parts.get(param.partition("#")[2], self.param)
