"""Which engine addresses a caller may name."""

from __future__ import annotations

import pytest

from services.common.engine_address import parse_engine_address


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("127.0.0.1:50052", "127.0.0.1:50052"),
        ("Engine-1.Example.ORG:1", "engine-1.example.org:1"),
        ("road_engine_1:65535", "road_engine_1:65535"),
        ("[::1]:50052", "[::1]:50052"),
        ("[2001:DB8:0::0:1]:80", "[2001:db8::1]:80"),
        ("unix:80", "unix:80"),  # a host of that name
    ],
)
def test_addresses_in_their_one_form(given: str, address: str) -> None:
    assert parse_engine_address(given) == address
    assert parse_engine_address(address) == address


@pytest.mark.parametrize(
    "given",
    [
        "",
        "engine",
        ":50052",
        "engine:",
        "engine:0",
        "engine:080",
        "engine:65536",
        "engine:99999",
        "engine:-1",
        "engine:١",
        "engine:80\n",
        "unix:/run/engine.sock",
        "unix:///run/engine.sock:80",
        "dns:engine:80",
        "dns:///engine:80",
        "xds:///engine:80",
        "ipv4:127.0.0.1:80",
        "127.0.0.256:80",
        "127.1:80",
        "1:80",
        "::1:80",
        "[::1%1]:80",
        "[127.0.0.1]:80",
        "-engine:80",
        "engine-:80",
        "a..b:80",
        "engine.:80",
        "a b:80",
        "engine/x:80",
        "café:80",
        f"{'x' * 64}:80",
        f"{'.'.join(['x' * 50] * 6)}:80",
    ],
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        parse_engine_address(given)
