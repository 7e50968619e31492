"""From logits to token ids.

The order per row: repetition, frequency and presence penalties, then logit_bias, then forbidden ids and what a grammar
does not allow (at minus infinity); then, unless the row is greedy, temperature, min_p, top_k, top_p, and one draw, by
a random number of the row's own, which its seed and the token's place decide.
min_p is measured against the whole distribution, top_p against what top_k and min_p left of it. Equally probable tokens
rank by id, lowest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from services.engine.executor.draw import inverse_cdf
from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.transfers import Download
from services.engine.executor.truncation import DrawTruncated, draw_truncated
from services.engine.executor.uniform import uniform
from services.engine.executor.uploads import Uploads
from services.engine.plan import SamplingJob, SamplingParams


@dataclass(frozen=True, slots=True)
class Samples:
    """One token per row, on the device and on its way from there."""

    token_ids: Tensor  # [rows], int64; of a row whose logits are not finite, any valid id
    _checked: Download  # likewise, with -1 for such rows

    @classmethod
    def launch(
        cls, logits: Tensor, jobs: Sequence[SamplingJob], uploads: Uploads, draw: DrawTruncated = draw_truncated
    ) -> Self:
        """Chooses one token per row, and waits for nothing but masks of grammars.

        logits: [len(jobs), vocab_size], float32 or bfloat16, left as they are. A row's token depends on its logits and
        its job alone. `draw` is for rows with top_k or top_p.
        """
        if any(job.edits_logits for job in jobs):
            logits = logits.to(torch.float32, copy=True)
            for row, job in zip(logits, jobs, strict=True):
                _edit(row, job, uploads)
            _keep_allowed(logits, jobs, uploads)
        best, token_ids = logits.max(-1)  # of equal ones the lowest id
        drawn_rows = [row for row, job in enumerate(jobs) if job.params.temperature > 0.0]
        if drawn_rows:
            rows = uploads(drawn_rows, torch.int64)
            relative = logits[rows].float() - best[rows, None].float()
            token_ids.index_copy_(0, rows, _draw(relative, [jobs[row] for row in drawn_rows], uploads, draw))
        return cls(token_ids, Download(token_ids.where(best.isfinite(), -1)))

    def read(self) -> list[int]:
        """Waits for them. Raises NonFiniteLogitsError."""
        token_ids: list[int] = self._checked.read().tolist()
        if min(token_ids) < 0:
            raise NonFiniteLogitsError([row for row, token_id in enumerate(token_ids) if token_id < 0])
        return token_ids


def sample(logits: Tensor, jobs: Sequence[SamplingJob], draw: DrawTruncated = draw_truncated) -> list[int]:
    """`Samples` that are waited for."""
    return Samples.launch(logits, jobs, Uploads(logits.device), draw).read()


def _edit(row: Tensor, job: SamplingJob, uploads: Uploads) -> None:
    """Applies penalties, bias and forbidden ids in place. row: [vocab_size], float32."""
    params = job.params

    def ids(token_ids: Iterable[int]) -> Tensor:
        return uploads(list(token_ids), torch.int64)

    if params.repetition_penalty != 1.0:
        seen = ids({*job.prompt_ids, *job.output_ids})
        logits = row[seen]
        row[seen] = torch.where(logits > 0.0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        counts = Counter(job.output_ids)
        penalties = [params.frequency_penalty * count + params.presence_penalty for count in counts.values()]
        row[ids(counts)] -= uploads(penalties, torch.float32)
    if params.logit_bias:
        row[ids(params.logit_bias)] += uploads(list(params.logit_bias.values()), torch.float32)
    if job.forbidden_ids:
        row[ids(job.forbidden_ids)] = -torch.inf


def _keep_allowed(logits: Tensor, jobs: Sequence[SamplingJob], uploads: Uploads) -> None:
    """Puts what the grammars do not allow at minus infinity, in place. logits: [len(jobs), vocab_size]."""
    masks = {row: job.mask.words() for row, job in enumerate(jobs) if job.mask is not None}
    if not masks:
        return
    words = uploads.put(torch.from_numpy(np.stack(list(masks.values()))))
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (bits & 1).flatten(1)[:, : logits.shape[-1]].bool()
    rows = uploads(list(masks), torch.int64)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def _draw(relative: Tensor, jobs: Sequence[SamplingJob], uploads: Uploads, draw: DrawTruncated) -> Tensor:
    """Draws one token per row by its temperature and filters.

    relative: [rows, vocab_size], float32, logits minus the row's highest. Returns [rows], int64.
    """
    params = [job.params for job in jobs]
    relative = relative / uploads([p.temperature for p in params], torch.float32)[:, None]
    if any(p.min_p > 0.0 for p in params):
        lowest = uploads([math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params], torch.float32)
        relative = relative.masked_fill(relative < lowest[:, None], -torch.inf)
    weights = relative.exp()
    uniforms = uploads([uniform(job.params.seed, job.place) for job in jobs], torch.float64)

    vocab_size = weights.shape[-1]
    cut = [row for row, p in enumerate(params) if _truncates(p, vocab_size)]
    if not cut:
        return inverse_cdf(weights, uniforms)
    tokens = torch.empty(len(jobs), dtype=torch.int64, device=weights.device)
    if len(cut) < len(jobs):
        whole = uploads(sorted(set(range(len(jobs))).difference(cut)), torch.int64)
        tokens[whole] = inverse_cdf(weights[whole], uniforms[whole])
    rows = uploads(cut, torch.int64)
    top_k = [min(params[row].top_k or vocab_size, vocab_size) for row in cut]
    top_p = [params[row].top_p for row in cut]
    tokens[rows] = draw(
        weights[rows],
        uploads(top_k, torch.int64) if min(top_k) < vocab_size else None,
        uploads(top_p, torch.float64) if min(top_p) < 1.0 else None,
        uniforms[rows],
    )
    return tokens


def _truncates(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0
