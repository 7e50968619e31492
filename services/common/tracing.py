"""Spans of one trace over all stations (OpenTelemetry), sent by OTLP when an endpoint is set.

Spans are recorded after the fact with explicit times: a station knows its phases when a request ends, and the hot path
carries no tracing calls. Without an endpoint nothing is made and a caller's traceparent passes through unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Attributes = Mapping[str, str | int | float | bool]
EXPORT_SECONDS = 2.0  # a collector that is away holds up a station's stop for as long
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenSpan:
    """A station's span of one request: opened at arrival, ended with its phases as children."""

    def __init__(self, tracer: trace.Tracer | None, name: str, traceparent: str | None) -> None:
        self._tracer = tracer
        self._span: trace.Span | None = None
        self.traceparent = traceparent  # for the next station's metadata
        if tracer is not None:
            parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
            self._span = tracer.start_span(name, context=parent, start_time=time.time_ns())
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
            self.traceparent = carrier.get("traceparent", traceparent)

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        """Records a child span. Times are nanoseconds of time.time_ns()."""
        if self._tracer is not None and self._span is not None and end_ns >= start_ns:
            parent = trace.set_span_in_context(self._span)
            self._tracer.start_span(name, context=parent, start_time=start_ns).end(end_ns)

    def end(self, attributes: Attributes, error: str | None = None) -> None:
        """Ends the span; to be called once, whichever way the request ended."""
        if self._span is not None:
            self._span.set_attributes(dict(attributes))
            if error:
                self._span.set_status(trace.StatusCode.ERROR, error)
            self._span.end(time.time_ns())


class Tracing:
    """Makes the spans of one station. `endpoint` is an OTLP/gRPC collector's URL; empty for no traces."""

    def __init__(self, station: str, endpoint: str) -> None:
        self._provider: TracerProvider | None = None
        self._tracer: trace.Tracer | None = None
        if endpoint:
            self._provider = TracerProvider(resource=Resource.create({"service.name": f"postroad-{station}"}))
            insecure = not endpoint.startswith("https")
            exporter = OTLPSpanExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_SECONDS)
            self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
            self._tracer = self._provider.get_tracer("postroad")

    def open(self, name: str, traceparent: str | None) -> OpenSpan:
        """Opens a station's span below the caller's, or as a trace of its own."""
        return OpenSpan(self._tracer, name, traceparent)

    def close(self) -> None:
        """Sends what is left."""
        if self._provider is not None:
            self._provider.shutdown()
