"""Scheduler state → messages of engine.proto."""

from __future__ import annotations

from collections.abc import Iterator

from services.common.errors import PostroadError
from services.engine.core import EngineState
from services.engine.phases import Phases
from services.engine.plan import TokenLogprobs
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.served_model import ServedModel
from services.pb.postroad.v1 import common_pb2, debug_pb2, engine_pb2

CHUNK_BYTES = 256 * 1024

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}


def stream_start(sequence: Sequence) -> engine_pb2.StreamStart:
    """To be called once the first token is out."""
    phases = Phases.of(sequence)
    return engine_pb2.StreamStart(
        cached_tokens=sequence.cached_tokens,
        schedule_wait_us=phases.schedule_wait_ns // 1000,
        prefill_us=phases.prefill_ns // 1000,
    )


def stream_end(sequence: Sequence, reason: FinishReason, error: PostroadError | None) -> engine_pb2.StreamEnd:
    """The terminal event. `error` goes with FinishReason.ERROR."""
    end = engine_pb2.StreamEnd(
        finish_reason=_FINISH_REASONS[reason], usage=_usage(sequence), timings=_timings(sequence)
    )
    if sequence.stop_token_id is not None:
        end.stop_token_id = sequence.stop_token_id
    if error is not None:
        code: int = error.status.value[0]
        end.error.CopyFrom(
            engine_pb2.StreamError(code=code, reason=error.reason, message=error.message, param=error.param or "")
        )
    return end


def embed_response(sequence: Sequence) -> engine_pb2.EmbedResponse:
    """Of a sequence whose prompt is computed and pooled."""
    assert sequence.pooler is not None, "the sequence is not one to embed"
    return engine_pb2.EmbedResponse(
        embedding=sequence.pooler.embedding(), usage=_usage(sequence), timings=_timings(sequence)
    )


def _usage(sequence: Sequence) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=len(sequence.prompt_ids),
        completion_tokens=len(sequence.output_ids),
        cached_tokens=sequence.cached_tokens,
    )


def _timings(sequence: Sequence) -> common_pb2.Timings:
    phases = Phases.of(sequence)
    return common_pb2.Timings(
        schedule_wait_us=phases.schedule_wait_ns // 1000,
        prefill_us=phases.prefill_ns // 1000,
        decode_us=phases.decode_ns // 1000,
        preemptions=sequence.preemptions,
    )


def token_logprobs(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    """As a message."""
    return common_pb2.TokenLogprobs(
        logprobs=logprobs.logprobs,
        ranks=logprobs.ranks,
        num_top=logprobs.num_top,
        top_ids=logprobs.top_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def model_response(model: ServedModel, max_model_len: int) -> engine_pb2.GetModelResponse:
    """`max_model_len` is 0 while the weights are loaded."""
    return engine_pb2.GetModelResponse(
        model=model.name,
        max_model_len=max_model_len,
        vocab_size=model.files.vocab_size,
        eos_token_ids=sorted(model.files.eos_token_ids),
        created=model.created,
        tokenizer_fingerprint=model.files.tokenizer_fingerprint,
        embedding_size=model.files.hidden_size,
    )


def tokenizer_file_chunks(model: ServedModel) -> Iterator[engine_pb2.TokenizerFileChunk]:
    """All files in chunks, an empty file as one empty chunk, then the checksum."""
    for name, data in model.files.tokenizer_files.items():
        for start in range(0, max(len(data), 1), CHUNK_BYTES):
            yield engine_pb2.TokenizerFileChunk(name=name, data=data[start : start + CHUNK_BYTES])
    yield engine_pb2.TokenizerFileChunk(sha256=model.files.tokenizer_fingerprint)


def kv_read_out(state: EngineState) -> debug_pb2.KvReadOut:
    kv = state.kv
    return debug_pb2.KvReadOut(
        total_pages=kv.total_pages,
        free_pages=kv.free_pages,
        cached_pages=kv.cached_pages,
        cached_pages_in_use=kv.cached_pages_in_use,
        private_pages=kv.private_pages,
        page_size=kv.page_size,
    )
