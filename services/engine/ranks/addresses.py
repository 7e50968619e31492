"""Under which address ranks reach one another."""

from __future__ import annotations

import socket
from urllib.parse import unquote


def own_address(peer: str) -> str:
    """The address of this machine from which it reaches `peer`, a host. Nothing is sent. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def host_of_peer(peer: str) -> str:
    """The address in gRPC's form of a peer: ipv4:127.0.0.1:1234, ipv6:%5B::1%5D:1234."""
    return host_of(unquote(peer).partition(":")[2])


def host_of(address: str) -> str:
    """The host of host:port."""
    return address.rpartition(":")[0].strip("[]")
