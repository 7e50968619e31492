"""Settings → one rank's part of the weights, and its place in the group. Runs in the thread that computes."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from services.engine.cuda_startup import fitting_pages, load_on_cuda
from services.engine.device import choose_device
from services.engine.executor.cuda_memory import CudaMemory, gpu_uuid
from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.ranks.addresses import host_of
from services.engine.ranks.follower import Follower
from services.engine.ranks.group import RankGroup
from services.engine.ranks.leading_executor import LeadingExecutor, LeadingGroup, OverlappedLeadingExecutor
from services.engine.ranks.link import RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.part import RankPart
from services.engine.ranks.process_groups import meeting_on
from services.engine.settings import EngineSettings
from services.engine.torch_startup import load_on_cpu

_FORM_MARGIN = 6.0  # seconds beyond rank_timeout: a rank may first have to find out that its last step hangs


def form_timeout(settings: EngineSettings) -> float:
    """Seconds that the ranks have to connect with one another."""
    return settings.rank_timeout + _FORM_MARGIN


def load_part(settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger) -> RankPart:
    """Reads the rank's part of the weights. Raises LoadingError, ModelError or StartupError."""
    device = choose_device(settings)
    group = RankGroup(
        settings.rank,
        settings.tensor_parallel_size,
        settings.rank_timeout,
        form_timeout(settings),
        meeting=meeting_on(device),
        device_type=device,
    )
    if device == "cpu":
        model, options, max_pages = load_on_cpu(settings, source, files, collectives=group)
        return RankPart(group, model, LoadedRank(max_pages), options)
    model, options = load_on_cuda(settings, source, files, log, collectives=group)
    with group.rehearsal():
        max_pages = fitting_pages(settings, model, options, CudaMemory())
    return RankPart(group, model, LoadedRank(max_pages, gpu_uuid()), options)


def load_follower(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger
) -> tuple[Follower, LoadedRank]:
    """What follows rank 0, and what rank 0 is told of it. Raises LoadingError, ModelError or StartupError."""
    part = load_part(settings, source, files, log)
    leader = host_of(settings.leader)
    follower = Follower(part, leader, settings.page_size, settings.max_model_len, form_timeout(settings))
    return follower, part.loaded


def load_leading_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger, link: RankLink
) -> LeadingExecutor:
    """Loads rank 0's part and waits for the other ranks. Raises LoadingError, ModelError or StartupError."""
    part = load_part(settings, source, files, log)
    group = LeadingGroup(part.group, link, settings.host, form_timeout(settings))
    graphs = part.options.graphs
    group.tell_loaded(part.loaded, () if graphs is None else graphs.sizes)

    def make(num_pages: int) -> TorchExecutor:
        runner = ModelRunner(part.model, num_pages, settings.page_size, settings.max_model_len, part.options)
        return TorchExecutor(runner)

    overlaps = settings.overlap and part.model.device.type == "cuda"
    return (OverlappedLeadingExecutor if overlaps else LeadingExecutor).of_first_group(make, group)
