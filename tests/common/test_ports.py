"""Why a port cannot be had."""

from __future__ import annotations

import errno
import socket

from services.common.ports import listen_error
from tests.support.ports import free_ports


def test_a_free_port() -> None:
    (port,) = free_ports(1)
    assert listen_error("127.0.0.1", port) is None


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = listen_error("127.0.0.1", server.getsockname()[1])
    assert error is not None
    assert error.errno == errno.EADDRINUSE


def test_an_address_of_another_machine() -> None:
    error = listen_error("192.0.2.1", 0)
    assert error is not None
    assert error.errno == errno.EADDRNOTAVAIL
