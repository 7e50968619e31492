"""The address of an engine, as a caller may name it."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_MAX_NAME = 253


def parse_engine_address(given: str) -> str:
    """host:port in its one form: a DNS name in small letters, an IPv4 address, or an IPv6 address in brackets.

    gRPC itself would take unix:path, xds:name and more. Raises ValueError.
    """
    host, _, port = given.lower().rpartition(":")
    try:
        if not given.isascii() or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ValueError(port)
        return f"{_parse_host(host)}:{port}"
    except ValueError:
        raise ValueError("must be host:port, with a DNS name, an IPv4 address or an [IPv6] address") from None


def grpc_target(address: str) -> str:
    """What opens a channel to host:port. Without the scheme, hosts named "unix" or "ipv4" would be schemes."""
    return f"dns:///{address}"


def _parse_host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        address = IPv6Address(host[1:-1])
        if address.scope_id is not None:
            raise AddressValueError(host)
        return f"[{address.compressed}]"
    if len(host) > _MAX_NAME or not _NAME.fullmatch(host):
        raise ValueError(host)
    # A name whose last label is a number would be read as an IPv4 address in some short form.
    return str(IPv4Address(host)) if host.rpartition(".")[2].isdecimal() else host
