"""Asks a station whether it would serve a request now: the health check of the containers.

    python -m services.common.probe 127.0.0.1:50052 postroad.v1.Engine
    python -m services.common.probe http://127.0.0.1:8000/ready

Ends with status 0 if so, else with 1 and the reason. Imports gRPC at most: it runs every few seconds.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

_TIMEOUT = 3.0  # seconds


def ask_http(url: str) -> str:
    """Why the answer to GET `url` is not a 200; empty if it is."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read(1000).decode(errors='replace')}"
    except OSError as error:
        return str(error)


def ask_grpc(address: str, service: str) -> str:
    """Why the health of `service` at host:port is not SERVING; empty if it is."""
    import grpc  # noqa: PLC0415 - an HTTP probe does without
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT).status
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    if status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def main(args: list[str]) -> int:
    """The exit status."""
    match args:
        case [url] if url.startswith(("http://", "https://")):
            reason = ask_http(url)
        case [address, service]:
            reason = ask_grpc(address, service)
        case _:
            reason = "usage: probe URL, or probe HOST:PORT SERVICE"
    if reason:
        print(reason, file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
