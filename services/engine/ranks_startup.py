"""Settings → one rank's part of the weights, and its place in the group. Runs in the thread that computes."""

from __future__ import annotations

import torch

from services.engine import resources
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.loading.weights import iter_lazily
from services.engine.models.config import ModelConfig
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.ranks.addresses import host_of
from services.engine.ranks.follower import Follower
from services.engine.ranks.group import RankGroup
from services.engine.ranks.leading_executor import LeadingExecutor, LeadingGroup
from services.engine.ranks.link import RankLink
from services.engine.ranks.part import RankPart
from services.engine.settings import EngineSettings
from services.engine.torch_startup import torch_dtype

_FORM_MARGIN = 6.0  # seconds beyond rank_timeout: a rank may first have to find out that its last step hangs


def form_timeout(settings: EngineSettings) -> float:
    """Seconds that the ranks have to connect with one another."""
    return settings.rank_timeout + _FORM_MARGIN


def load_part(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> RankPart:
    """Reads the rank's part of the weights. Raises LoadingError, ModelError or StartupError."""
    torch.set_num_threads(resources.num_threads(settings))
    dtype = torch_dtype(settings, resources.dtype(settings))
    config = ModelConfig.from_hf(files.config, settings.max_model_len)
    shard = Shard.of(config, settings.rank, settings.tensor_parallel_size)
    group = RankGroup(settings.rank, settings.tensor_parallel_size, settings.rank_timeout, form_timeout(settings))
    model = load_shard(shard, iter_lazily(source, files.config), dtype, "cpu", group)
    page_bytes = kv_bytes_per_page(shard.local_config, dtype, settings.page_size)
    return RankPart(group, model, resources.num_pages(settings, page_bytes))


def load_follower(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> tuple[Follower, int]:
    """What follows rank 0, and the pages for which it has room. Raises LoadingError, ModelError or StartupError."""
    part = load_part(settings, source, files)
    return Follower(part, host_of(settings.leader), settings.page_size, form_timeout(settings)), part.max_pages


def load_leading_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, link: RankLink
) -> LeadingExecutor:
    """Loads rank 0's part and waits for the other ranks. Raises LoadingError, ModelError or StartupError."""
    part = load_part(settings, source, files)
    group = LeadingGroup(part.group, link, settings.host, form_timeout(settings))
    formation = group.form_first(part.max_pages)
    executor = TorchExecutor(part.model, formation.num_pages, settings.page_size, settings.max_model_len)
    return LeadingExecutor(executor, group)
