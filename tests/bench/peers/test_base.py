"""Servers as processes: started, paused, resumed and ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.peers.base import HttpServer, PeerError
from tests.support.ports import free_ports
from tests.support.processes import is_alive, wait_until

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def _server(tmp_path: Path, code: str) -> HttpServer:
    (port,) = free_ports(1)
    return HttpServer([sys.executable, "-c", code, str(port)], tmp_path / "logs" / "server.log", port=port, model="m")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def test_a_paused_server_is_stopped_and_goes_on_later(tmp_path: Path) -> None:
    with _server(tmp_path, SERVER) as server:
        server.pause()
        wait_until(lambda: _state(server.pid) == "T", "the server is stopped")
        server.resume()
        wait_until(lambda: _state(server.pid) != "T", "the server goes on")
    assert not is_alive(server.pid)


def test_a_paused_server_is_ended_all_the_same(tmp_path: Path) -> None:
    with _server(tmp_path, SERVER) as server:
        server.pause()
    assert not is_alive(server.pid)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = _server(tmp_path, "import sys; sys.exit('no such model')")
    with pytest.raises(PeerError, match="no such model"), server:
        pass
    assert not is_alive(server.pid)
