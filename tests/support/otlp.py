"""An OTLP/gRPC trace receiver in the test's own process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it arrived; ids are lower-case hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Collects what services export. Use as a context manager; `endpoint` is the URL for their settings."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> OtlpReceiver:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of one trace that have arrived so far."""
        return [span for span in self.spans if span.trace_id == trace_id]

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            for scope in resource.scope_spans:
                self.spans.extend(
                    ReceivedSpan(
                        service=names[0],
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                    )
                    for span in scope.spans
                )
        return trace_service_pb2.ExportTraceServiceResponse()
