"""Settings → the model's files → an executor → the engine's core. Runs in the engine thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from services.engine.core import EngineCore
from services.engine.device import Device, choose_device
from services.engine.errors import NativeNotInstalled, StartupError
from services.engine.executor.base import Executor, ExecutorInfo
from services.engine.executor.scripted import Script, ScriptedExecutor
from services.engine.loading.files import ModelFiles, read_model_files
from services.engine.loading.source import ModelSource, resolve
from services.engine.models.errors import NotCovered
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.link import RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.served_model import ServedModel
from services.engine.settings import EngineSettings

if TYPE_CHECKING:
    # They need torch.
    from services.engine.ranks.follower import Follower
    from services.engine.ranks.leading_executor import LeadingExecutor


def load_engine(
    settings: EngineSettings,
    publish: Callable[[ServedModel], None],
    log: FilteringBoundLogger,
    link: RankLink | None = None,
) -> EngineCore:
    """Calls `publish` as soon as the model's files are read. With several ranks it waits for them, by `link`.

    Raises LoadingError, ModelError, ScriptError or StartupError.
    """
    source = resolve(settings.model)
    files = read_model_files(source)
    publish(ServedModel(settings.served_model_name or source.served_name, files, created=int(time.time())))
    _check_max_model_len(settings, files)
    config = SchedulerConfig(
        max_batch_tokens=settings.max_batch_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_finishing_tokens=settings.max_finishing_tokens,
        max_mixed_prompt_tokens=settings.max_mixed_prompt_tokens or max(1, settings.max_batch_tokens // 6),
    )
    if settings.tensor_parallel_size > 1:
        assert link is not None, "several ranks and no link to them"
        leading = _leading_executor(settings, source, files, log, link)
        _tell_of_a_short_pool(settings, files, leading.info, log)
        return EngineCore(Scheduler(config, leading.info), leading, leading.restore)
    executor = _load_executor(settings, source, files, log)
    _tell_of_a_short_pool(settings, files, executor.info, log)
    return EngineCore(Scheduler(config, executor.info), executor)


def _load_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger
) -> Executor:
    """What each executor needs is imported only for it."""
    match settings.executor:
        case "scripted":
            return _scripted_executor(settings, files)
        case "torch":
            return _torch_executor(settings, source, files, log, choose_device(settings))
        case "native":
            return _native_executor(settings, source, files, log)
    if choose_device(settings) == "cuda":
        log.info("executor chosen", executor="torch", reason="there is a CUDA device")
        return _torch_executor(settings, source, files, log, "cuda")
    if settings.needs_torch:
        log.info("executor chosen", executor="torch", reason=f"{settings.needs_torch} is asked for")
        return _torch_executor(settings, source, files, log, "cpu")
    try:
        executor = _native_executor(settings, source, files, log)
    except (NativeNotInstalled, NotCovered) as reason:
        if settings.needs_native:
            raise StartupError(f"{settings.needs_native} needs the native executor: {reason}") from reason
        log.warning("executor chosen", executor="torch", reason=str(reason))
        return _torch_executor(settings, source, files, log, "cpu")
    log.info("executor chosen", executor="native", reason="it covers the model")
    return executor


def _torch_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger, device: Device
) -> Executor:
    tame_openmp()
    if device == "cuda":
        from services.engine.cuda_startup import load_cuda_executor  # noqa: PLC0415

        return load_cuda_executor(settings, source, files, log)
    from services.engine.torch_startup import load_torch_executor  # noqa: PLC0415

    return load_torch_executor(settings, source, files)


def _leading_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger, link: RankLink
) -> LeadingExecutor:
    """One that works with other ranks: the native executor computes a whole model."""
    tame_openmp()
    link.identified(RankIdentity.of(settings, source))
    reason = f"tensor-parallel-size is {settings.tensor_parallel_size}, and the native executor has one rank"
    log.info("executor chosen", executor="torch", reason=reason)
    from services.engine.ranks_startup import load_leading_executor  # noqa: PLC0415

    return load_leading_executor(settings, source, files, log, link)


def tame_openmp() -> None:
    """To be called before torch is loaded, as OpenMP reads it then. Its threads would spin for milliseconds at each of
    a step's hundreds of barriers; with another process on one of the cores, a step of 29 ms then takes 350 to 1,300.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def _native_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger
) -> Executor:
    try:
        from services.engine.native_startup import load_native_executor  # noqa: PLC0415
    except ImportError as error:
        raise NativeNotInstalled(f"the native executor is not installed ({error}); `make native` builds it") from error
    executor = load_native_executor(settings, source, files)
    log.info("weights packed", isa=executor.isa, linear_layers=executor.num_linears)
    return executor


def identify_rank(settings: EngineSettings) -> RankIdentity:
    """What a rank that does not lead is compared by. Raises LoadingError or StartupError."""
    tame_openmp()
    return RankIdentity.of(settings, resolve(settings.model))


def load_rank(settings: EngineSettings, log: FilteringBoundLogger) -> tuple[Follower, LoadedRank]:
    """A rank that does not lead, and what rank 0 is told of it. Raises as load_engine."""
    tame_openmp()
    from services.engine.ranks_startup import load_follower  # noqa: PLC0415

    source = resolve(settings.model)
    return load_follower(settings, source, read_model_files(source), log)


def model_length(files: ModelFiles) -> int:
    """The longest sequence that the model was made for, tokens."""
    config = files.config.get("text_config", files.config)
    return int(config["max_position_embeddings"])


def _check_max_model_len(settings: EngineSettings, files: ModelFiles) -> None:
    if settings.max_model_len is not None and settings.max_model_len > model_length(files):
        raise StartupError(
            f"max-model-len {settings.max_model_len} is more than the model's {model_length(files)} tokens"
        )


def _tell_of_a_short_pool(
    settings: EngineSettings, files: ModelFiles, info: ExecutorInfo, log: FilteringBoundLogger
) -> None:
    """Requests are refused by the length, and nothing there says that the KV pool is the reason."""
    wanted = settings.max_model_len or model_length(files)
    if info.max_model_len < wanted:
        log.warning(
            "the KV pool holds less than the longest request", max_model_len=info.max_model_len, instead_of=wanted
        )


def _scripted_executor(settings: EngineSettings, files: ModelFiles) -> ScriptedExecutor:
    """Its pages exist in the scheduler's books only: by default as many as all running sequences could need."""
    max_model_len = settings.max_model_len or model_length(files)
    num_pages = settings.num_pages or settings.max_num_seqs * -(-max_model_len // settings.page_size)
    info = ExecutorInfo(
        num_pages=num_pages,
        page_size=settings.page_size,
        vocab_size=files.vocab_size,
        max_model_len=min(max_model_len, num_pages * settings.page_size),
    )
    tokenizer_json = files.tokenizer_files["tokenizer.json"]
    if settings.script is None:
        script = Script.endless(tokenizer_json)
    else:
        script = Script.load(settings.script, tokenizer_json, files.eos_token_ids)
    return ScriptedExecutor(info, script, settings.step_ms, hidden_size=files.hidden_size)
