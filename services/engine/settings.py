"""The engine's flags and variables (POSTROAD_ENGINE_*)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import ByteSize, Field, model_validator

from services.common.settings import MAX_SECONDS, StationSettings
from services.engine.validation import MAX_SPECULATIVE_TOKENS

NativeQuantization = Literal["auto", "none", "int8", "int4"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]

_FINISHING_SHARE = 16  # of a step's tokens; what finishes a prompt may be as much more


class EngineSettings(StationSettings):
    """Settings of an engine, or of one rank of it."""

    station: ClassVar[str] = "engine"

    port: int = Field(50052, ge=0, le=65535, description="gRPC port; 0 for any free one.")
    metrics_port: int = Field(9462, ge=0, le=65535, description="HTTP port of /metrics; 0 for none.")

    model: str = Field("default", description="'default', a .gguf file, a folder, or a Hub id org/name.")
    served_model_name: str = Field("", description="Name that clients see. Empty: the model's own.")
    executor: Literal["auto", "native", "torch", "scripted"] = Field(
        "auto",
        description="What runs the steps; 'auto' is torch on a CUDA device, native where that is installed and covers "
        "the model, else torch; 'scripted' replays given texts on a clock, without weights.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Where the model is computed; 'auto' is cuda where there is one and no setting asks for what only "
        "the CPU has; on cuda the torch executor runs.",
    )
    attention: Literal["auto", "flashinfer", "torch"] = Field(
        "auto",
        description="Attention on cuda; 'auto' is flashinfer where that is installed and covers the model, else torch.",
    )
    max_graph_batch: int | None = Field(
        None,
        ge=0,
        description="Decodes up to which a step on cuda is one recorded graph, with flashinfer; 0: none. Default: "
        "max-num-seqs, at most 256.",
    )
    overlap: bool = Field(
        True,
        description="On cuda, plan and launch a step while the one before it runs; elsewhere steps never overlap.",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of a GPU's memory that weights, KV pool and steps take together."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Type of the weights; 'auto' is bfloat16 where the device computes in it."
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = Field(
        "auto",
        description="Type of the KV pool; 'auto' is that of dtype; int8 and fp8 take half the memory of bfloat16; int8 "
        "needs the native executor, fp8 (e4m3) the torch executor.",
    )
    quantization: Quantization = Field(
        "auto",
        description="How the native executor stores matrices: 'int8' or 'int4', quantized at load; 'none', in dtype; "
        "'auto' takes a GGUF file's Q4_0, Q4_1 and Q8_0 as they are and the rest as 'none', which it is for all where "
        "--dtype is float32 or the CPU has AMX. 'fp8' is the torch executor's: e4m3, made for CUDA.",
    )
    threads: int = Field(
        0, ge=0, description="Threads of a step; 0 for as many as cores, or the container's quota, allow."
    )

    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="Ranks, processes that share one model; more than 1 needs the torch executor."
    )
    rank: int = Field(0, ge=0, le=63, description="Which of them this is. Rank 0 is the engine that clients call.")
    leader: str = Field("", description="host:port of rank 0, for the other ranks.")
    local_ranks: int | None = Field(
        None,
        ge=1,
        description="Ranks that share this machine's, or container's, cores, memory and GPUs. Default: all.",
    )
    rank_timeout: float = Field(
        4.0,
        gt=0,
        le=MAX_SECONDS,
        description="Seconds that a rank may keep the others waiting in the middle of a step before it is given up; on "
        "cuda, that a step may take.",
    )

    max_model_len: int | None = Field(
        None, ge=2, description="Longest prompt and output together. Default: the model's."
    )
    max_num_seqs: int = Field(128, ge=1, description="Sequences that run at once.")
    max_batch_tokens: int = Field(512, ge=1, description="Tokens per step, decodes and prefill chunks together.")
    max_mixed_prompt_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt tokens of a step in which streams decode, unless a queue of prompts waits: how long a "
        "prompt that comes by itself stops running streams at a time. Default: a sixth of max-batch-tokens.",
    )
    num_speculative_tokens: int = Field(
        0,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="Tokens that a step may guess of each sequence whose request does not say, by prompt lookup.",
    )
    max_waiting: int = Field(1024, ge=1, description="Requests that may wait; more are refused.")

    grammar_cache_mib: int = Field(64, ge=1, description="Room for compiled grammars that are kept, MiB.")
    grammar_timeout: float = Field(
        10.0, gt=0, le=MAX_SECONDS, description="Seconds that a request waits for its grammar."
    )

    page_size: int = Field(16, ge=1, le=256, description="Tokens per page of the KV pool.")
    kv_cache_memory: ByteSize | None = Field(
        None,
        description="Size of the KV pool, bytes or for instance 2GiB. Default: a quarter of the free memory; on cuda, "
        "what gpu-memory-utilization leaves.",
    )
    num_pages: int | None = Field(None, ge=1, description="Pages of the KV pool; goes before kv-cache-memory.")

    step_ms: float = Field(
        25.0, ge=0, le=60_000, description="Scripted executor: milliseconds from one decode step to the next."
    )
    script: Path | None = Field(None, description="Scripted executor: JSON file of the texts to replay.")

    @model_validator(mode="after")
    def _one_executor_has_it_all(self) -> Self:
        native, torch = self.needs_native, self.needs_torch
        for executor, asked in (("native", native), ("torch", torch)):
            if asked and self.executor not in ("auto", executor):
                raise ValueError(f"{asked} needs the {executor} executor, not {self.executor}")
        if native and torch:
            raise ValueError(f"{native} needs the native executor, and {torch} the torch executor")
        return self

    @model_validator(mode="after")
    def _device_has_it_all(self) -> Self:
        if self.needs_cuda and self.device == "cpu":
            raise ValueError(f"{self.needs_cuda} needs a CUDA device, and device is cpu")
        return self

    @model_validator(mode="after")
    def _attention_has_graphs(self) -> Self:
        if self.max_graph_batch and self.attention == "torch":
            raise ValueError(f"max-graph-batch {self.max_graph_batch} needs attention flashinfer, not torch")
        return self

    @property
    def max_finishing_tokens(self) -> int:
        """Tokens by which a step may exceed max_batch_tokens to finish a prompt."""
        return self.max_batch_tokens // _FINISHING_SHARE

    @property
    def needs_cuda(self) -> str:
        """What is asked for that only a CUDA device has; empty if nothing is."""
        if self.device == "cuda":
            return "device cuda"
        if self.attention == "flashinfer":
            return "attention flashinfer"
        return f"max-graph-batch {self.max_graph_batch}" if self.max_graph_batch else ""

    @property
    def needs_torch(self) -> str:
        """What is asked for that only the torch executor has; empty if nothing is."""
        if self.quantization == "fp8":
            return "quantization fp8"
        if self.kv_cache_dtype == "fp8":
            return "kv-cache-dtype fp8"
        if self.tensor_parallel_size > 1:
            return f"tensor-parallel-size {self.tensor_parallel_size}"
        return self.needs_cuda

    @property
    def needs_native(self) -> str:
        """What is asked for that only the native executor has; empty if nothing is."""
        if self.quantization in ("int8", "int4"):
            return f"quantization {self.quantization}"
        return "kv-cache-dtype int8" if self.kv_cache_dtype == "int8" else ""

    @property
    def wants_native(self) -> bool:
        """Whether the native executor is asked for, or something that only it has."""
        return self.executor == "native" or bool(self.needs_native)

    @model_validator(mode="after")
    def _rank_knows_its_place(self) -> Self:
        if self.rank >= self.tensor_parallel_size:
            raise ValueError(f"rank {self.rank} must be below tensor-parallel-size, {self.tensor_parallel_size}")
        if self.rank > 0 and not self.leader:
            raise ValueError(f"rank {self.rank} needs the leader, host:port of rank 0")
        if self.rank == 0 and self.leader:
            raise ValueError("rank 0 is the leader itself: leader is for the other ranks")
        if self.local_ranks is not None and self.local_ranks > self.tensor_parallel_size:
            raise ValueError(
                f"local-ranks ({self.local_ranks}) must be at most tensor-parallel-size ({self.tensor_parallel_size})"
            )
        return self

    @model_validator(mode="after")
    def _budget_holds_every_decode(self) -> Self:
        if self.max_batch_tokens < self.max_num_seqs:
            raise ValueError(
                f"max-batch-tokens ({self.max_batch_tokens}) must be at least max-num-seqs ({self.max_num_seqs}): "
                "every running sequence decodes one token per step"
            )
        return self
