"""docs/errors.md against services/common/errors.py and the gateway's mapping to HTTP."""

from __future__ import annotations

from services.common.errors import PostroadError
from services.gateway.errors import from_station, is_transient
from tests.docs.pages import by_code, table


def all_errors() -> list[type[PostroadError]]:
    """Every type of error that a station raises."""

    def below(cls: type[PostroadError]) -> list[type[PostroadError]]:
        return [cls, *(deep for sub in cls.__subclasses__() for deep in below(sub))]

    return [cls for cls in below(PostroadError) if cls.__module__ == "services.common.errors"]


def test_every_reason_with_status_and_http() -> None:
    rows = by_code(table("errors.md", "Errors"), "reason")
    assert {reason: (row["gRPC status"], row["HTTP"], row["tried again"] == "yes") for reason, row in rows.items()} == {
        cls.reason: (cls.status.name, str(from_station(cls("")).status), is_transient(cls(""))) for cls in all_errors()
    }
    assert all(row["meaning"] for row in rows.values())
