"""From logits to token ids.

The order per row: repetition, frequency and presence penalties, then logit_bias, then forbidden ids and what a grammar
does not allow (at minus infinity); then, unless the row is greedy, temperature, min_p, top_k, top_p, and one draw.
min_p is measured against the whole distribution, top_p against what top_k and min_p left of it. Equally probable tokens
rank by id, lowest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from services.engine.executor.draw import inverse_cdf
from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.truncation import draw_truncated
from services.engine.executor.uniform import uniform
from services.engine.plan import SamplingJob, SamplingParams


def sample(logits: Tensor, jobs: Sequence[SamplingJob]) -> list[int]:
    """Chooses one token per row. logits: [len(jobs), vocab_size], float32 or bfloat16, left as they are.

    A row's token depends on its logits and its job alone. Raises NonFiniteLogitsError.
    """
    if any(job.edits_logits for job in jobs):
        logits = logits.to(torch.float32, copy=True)
        for row, job in zip(logits, jobs, strict=True):
            _edit(row, job)
        _keep_allowed(logits, jobs)
    best, best_ids = logits.max(-1)  # of equal ones the lowest id
    if not best.isfinite().all():
        raise NonFiniteLogitsError((~best.isfinite()).nonzero().flatten().tolist())
    tokens: list[int] = best_ids.tolist()
    drawn_rows = [row for row, job in enumerate(jobs) if job.params.temperature > 0.0]
    if drawn_rows:
        relative = logits[drawn_rows].float() - best[drawn_rows, None].float()
        for row, token in zip(drawn_rows, _draw(relative, [jobs[row] for row in drawn_rows]), strict=True):
            tokens[row] = token
    return tokens


def _edit(row: Tensor, job: SamplingJob) -> None:
    """Applies penalties, bias and forbidden ids in place. row: [vocab_size], float32."""
    params = job.params
    if params.repetition_penalty != 1.0:
        seen = _ids(row, {*job.prompt_ids, *job.output_ids})
        logits = row[seen]
        row[seen] = torch.where(logits > 0.0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        counts = Counter(job.output_ids)
        penalties = [params.frequency_penalty * count + params.presence_penalty for count in counts.values()]
        row[_ids(row, counts)] -= torch.tensor(penalties, device=row.device)
    if params.logit_bias:
        row[_ids(row, params.logit_bias)] += torch.tensor(list(params.logit_bias.values()), device=row.device)
    if job.forbidden_ids:
        row[_ids(row, job.forbidden_ids)] = -torch.inf


def _keep_allowed(logits: Tensor, jobs: Sequence[SamplingJob]) -> None:
    """Puts what the grammars do not allow at minus infinity, in place. logits: [len(jobs), vocab_size]."""
    masks = {row: job.mask.words() for row, job in enumerate(jobs) if job.mask is not None}
    if not masks:
        return
    words = torch.from_numpy(np.stack(list(masks.values()))).to(logits.device)
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (bits & 1).flatten(1)[:, : logits.shape[-1]].bool()
    rows = list(masks)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def _ids(row: Tensor, ids: Iterable[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64, device=row.device)


def _draw(relative: Tensor, jobs: Sequence[SamplingJob]) -> list[int]:
    """Draws one token per row by its temperature and filters.

    relative: [rows, vocab_size], float32, logits minus the row's highest.
    """

    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=relative.device)

    params = [job.params for job in jobs]
    relative = relative / column([p.temperature for p in params], torch.float32)[:, None]
    if any(p.min_p > 0.0 for p in params):
        lowest = column([math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params], torch.float32)
        relative = relative.masked_fill(relative < lowest[:, None], -torch.inf)
    weights = relative.exp()
    uniforms = column([uniform(job.params.seed, len(job.output_ids)) for job in jobs], torch.float64)

    vocab_size = weights.shape[-1]
    tokens = torch.empty(len(jobs), dtype=torch.int64, device=weights.device)
    whole = [row for row, p in enumerate(params) if not _truncates(p, vocab_size)]
    if whole:
        tokens[whole] = inverse_cdf(weights[whole], uniforms[whole])
    cut = [row for row, p in enumerate(params) if _truncates(p, vocab_size)]
    if cut:
        top_k = column([min(params[row].top_k or vocab_size, vocab_size) for row in cut], torch.int64)
        top_p = column([params[row].top_p for row in cut], torch.float64)
        tokens[cut] = draw_truncated(weights[cut], top_k, top_p, uniforms[cut])
    drawn: list[int] = tokens.tolist()
    return drawn


def _truncates(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0
