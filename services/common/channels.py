"""gRPC channels between stations, with the options that were measured to notice a dead peer within seconds."""

from __future__ import annotations

import json
from typing import Any, Literal

import grpc

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # gRPC's default of 4 MiB ends long prompts

# Shorter keepalive times than the server's minimum interval (servers.py) earn GOAWAY too_many_pings.
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 1500),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name the time that an attempt has to connect: a refused one is repeated after the back-off alone.
    ("grpc.min_reconnect_backoff_ms", 3000),
    # Asked again when a connection was lost, and no more often than this; the default of 30 s hides new replicas.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.enable_retries", 0),  # retries are the gateway's decision: it knows whether a token was sent
)


def open_channel(
    address: str,
    policy: Literal["pick_first", "round_robin"] = "pick_first",
    health_service: str | None = None,
    *,
    own_connection: bool = False,
) -> grpc.aio.Channel:
    """A plaintext channel to host:port or dns:///name:port; `round_robin` uses all addresses of the name in turn.

    With `health_service` (round_robin only) gRPC watches that service's health on each address and uses none that is
    not SERVING: the channel is READY exactly when a call would be served.

    Channels of a process share connections, and with them the pause after a failed attempt; one with `own_connection`
    does not, and connects at once.
    """
    config: dict[str, Any] = {"loadBalancingConfig": [{policy: {}}]}
    if health_service is not None:
        config["healthCheckConfig"] = {"serviceName": health_service}
    options = [
        *_CHANNEL_OPTIONS,
        ("grpc.service_config", json.dumps(config)),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    ]
    return grpc.aio.insecure_channel(address, options=options)
