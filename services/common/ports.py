"""Why a port cannot be listened on, found out by trying: gRPC and uvicorn do not tell."""

from __future__ import annotations

import socket


def listen_error(host: str, port: int) -> OSError | None:
    """What the system says to a socket that is bound to `host`:`port`; None when the port can be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
            probe.bind(address)
    except OSError as error:
        return error
    return None
