"""The engine's Prometheus metrics. Observed per step and per request, never per token; gauges are read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.engine.core import EngineState, StepReport
from services.engine.phases import Phases
from services.engine.ranks.metrics import STEP_BUCKETS, RankMetrics
from services.engine.scheduler.counters import Counters
from services.engine.scheduler.sequence import FinishReason
from services.engine.step_histogram import StepHistogram

_REQUEST_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
_COMPILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_FINISHED_REASONS = {reason: reason.name.lower() for reason in FinishReason}


class EngineMetrics:
    """All of an engine. `collector` is to be attached to the engine once there is one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"postroad_{name}", text, buckets=buckets, registry=registry)

        self._step_seconds = StepHistogram(
            "postroad_engine_step_seconds", "Time of a step, planning included.", STEP_BUCKETS, registry
        )
        self._batch_tokens = StepHistogram(
            "postroad_engine_batch_tokens", "Tokens computed by a step.", _TOKEN_BUCKETS, registry
        )
        self._queue_time = histogram(
            "request_queue_time_seconds", "From arrival in the engine to the first step.", _REQUEST_BUCKETS
        )
        self._prefill_time = histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", _REQUEST_BUCKETS
        )
        self._decode_time = histogram(
            "request_decode_time_seconds", "From the first token to the last one.", _REQUEST_BUCKETS
        )
        self._grammar_compile_time = histogram(
            "grammar_compile_seconds", "Time to compile a grammar.", _COMPILE_BUCKETS
        )
        self._grammar_wait_time = histogram(
            "request_grammar_time_seconds",
            "From arrival until the grammar is there; requests without one are not counted.",
            _COMPILE_BUCKETS,
        )
        self._grammar_queries = Counter("postroad_grammar_cache_queries", "Grammars asked for.", registry=registry)
        self._grammar_hits = Counter(
            "postroad_grammar_cache_hits", "Of these, grammars that were compiled already.", registry=registry
        )
        self._prompt_tokens = Counter("postroad_prompt_tokens", "Prompt tokens of ended requests.", registry=registry)
        self._generated = Counter("postroad_generation_tokens", "Tokens generated.", registry=registry)
        self._failed_steps = Counter("postroad_engine_failed_steps", "Steps that failed.", registry=registry)
        finished = Counter(
            "postroad_request_success", "Requests ended, by reason.", ["finished_reason"], registry=registry
        )
        self._finished = {reason: finished.labels(name) for reason, name in _FINISHED_REASONS.items()}
        self.ranks = RankMetrics(registry)
        self.collector = StateCollector()
        registry.register(self.collector)

    def step(self, report: StepReport) -> None:
        """One step was run, or failed."""
        if report.error is not None:
            self._failed_steps.inc()
        elif report.num_tokens:
            self._step_seconds.observe(report.seconds)
            self._batch_tokens.observe(report.num_tokens)
            self._generated.inc(sum([len(output.token_ids) for output in report.outputs]))

    def grammar_looked_up(self, *, hit: bool) -> None:
        """A request asked for a grammar, which was in the cache or was not."""
        self._grammar_queries.inc()
        if hit:
            self._grammar_hits.inc()

    def grammar_compiled(self, seconds: float) -> None:
        """From any thread."""
        self._grammar_compile_time.observe(seconds)

    def grammar_awaited(self, seconds: float) -> None:
        self._grammar_wait_time.observe(seconds)

    def request_ended(self, reason: FinishReason, prompt_tokens: int, phases: Phases) -> None:
        self._finished[reason].inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._queue_time.observe(phases.schedule_wait_ns / 1e9)
        self._prefill_time.observe(phases.prefill_ns / 1e9)
        self._decode_time.observe(phases.decode_ns / 1e9)


class StateCollector(Collector):
    """What scheduler and KV pool hold, read when Prometheus asks, from the thread that serves it."""

    def __init__(self) -> None:
        self._read: Callable[[], EngineState] | None = None
        self._counters = Counters()

    def attach(self, read: Callable[[], EngineState], counters: Counters) -> None:
        """To be called once the engine is ready; until then all is 0."""
        self._read, self._counters = read, counters

    def collect(self) -> Iterator[Metric]:
        state = self._read() if self._read is not None else None
        used = (state.kv.cached_pages_in_use + state.kv.private_pages) / state.kv.total_pages if state else 0.0
        counters = self._counters
        queries = counters.prefix_hit_tokens + counters.prefix_miss_tokens
        running, waiting = (state.num_running, state.num_waiting) if state else (0, 0)
        yield GaugeMetricFamily("postroad_num_requests_running", "Sequences in the batch.", running)
        yield GaugeMetricFamily("postroad_num_requests_waiting", "Sequences that wait for a place in it.", waiting)
        yield GaugeMetricFamily("postroad_kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.", used)
        yield CounterMetricFamily(
            "postroad_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", queries
        )
        yield CounterMetricFamily(
            "postroad_prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.prefix_hit_tokens
        )
        yield CounterMetricFamily("postroad_num_preemptions", "Sequences preempted.", counters.preemptions)
        yield CounterMetricFamily(
            "postroad_spec_decode_num_drafts",
            "Times that guessed tokens of a sequence were checked.",
            counters.spec_decode_drafts,
        )
        yield CounterMetricFamily(
            "postroad_spec_decode_num_draft_tokens", "Tokens guessed.", counters.spec_decode_draft_tokens
        )
        yield CounterMetricFamily(
            "postroad_spec_decode_num_accepted_tokens",
            "Guessed tokens that held.",
            counters.spec_decode_accepted_tokens,
        )
