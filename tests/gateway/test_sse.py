from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.sse import TextEventTemplate, event


@given(st.text())
def test_a_filled_template_is_the_event_of_the_whole_object(text: str) -> None:
    template = TextEventTemplate(
        {"id": "x", "choices": [{"delta": {"content": TextEventTemplate.mark()}}], "usage": None}
    )
    filled = template.fill(text)
    assert filled.startswith(b"data: ")
    assert filled.endswith(b"\n\n")
    assert filled.count(b"\n") == 2, "one data line per event"
    data = json.loads(filled.removeprefix(b"data: "))
    assert data == {"id": "x", "choices": [{"delta": {"content": text}}], "usage": None}


def test_event() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", "ping") == b"event: ping\ndata: {}\n\n"
    template = TextEventTemplate({"text": TextEventTemplate.mark()}, "delta")
    assert template.fill("é") == 'event: delta\ndata: {"text":"é"}\n\n'.encode()
