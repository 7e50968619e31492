"""A step plan as the tensors that the model takes: one flat run of tokens, decode rows first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.executor.uploads import Uploads
from services.engine.plan import PENDING_TOKEN, SamplingJob, ScoringJob, SequencePlan


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The tokens of a step. Rows 0 … len(decodes) - 1 are the decodes, shortest first; the prefill chunks follow.

    The order is this batch's own affair: rows of different sequences meet in attention only, which knows who is where.
    """

    decodes: list[SequencePlan]
    prefills: list[SequencePlan]
    token_ids: Tensor  # [tokens], int64; PENDING_TOKEN at the rows of `pending`
    positions: Tensor  # [tokens], int64
    slots: Tensor  # [tokens], int64: where in the KV pool each token's keys and values go
    sampled_rows: Tensor  # [sampled], int64: those with a sampling job
    sampled_ids: list[int]  # the id of each one's sequence
    jobs: list[SamplingJob]  # likewise
    scorings: list[tuple[int, int, ScoringJob]]  # sequence id, first row, job
    state_rows: Tensor  # [rows], int64: those whose states are wanted
    num_states: list[tuple[int, int]]  # sequence id and number of its rows, in the order of state_rows
    pending: list[tuple[int, int]]  # row and sequence id of each token that the step before this one samples
    uploads: Uploads  # for whatever else the step needs on the device

    @classmethod
    def build(cls, sequences: Sequence[SequencePlan], page_size: int, uploads: Uploads) -> StepBatch:
        """Raises IndexError where a page table is too short for its tokens."""
        decodes = sorted((s for s in sequences if s.is_decode), key=lambda s: s.start)
        prefills = [s for s in sequences if not s.is_decode]
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sampled_rows: list[int] = []
        sampled_ids: list[int] = []
        jobs: list[SamplingJob] = []
        scorings: list[tuple[int, int, ScoringJob]] = []
        state_rows: list[int] = []
        num_states: list[tuple[int, int]] = []
        pending: list[tuple[int, int]] = []
        for sequence in (*decodes, *prefills):
            span = range(sequence.start, sequence.start + len(sequence.token_ids))
            table = sequence.page_table
            if sequence.scoring is not None:
                scorings.append((sequence.sequence_id, len(token_ids) + sequence.scoring.first_row, sequence.scoring))
            if sequence.state_rows:
                state_rows += (len(token_ids) + row for row in sequence.state_rows)
                num_states.append((sequence.sequence_id, len(sequence.state_rows)))
            if sequence.token_ids[0] == PENDING_TOKEN:
                pending.append((len(token_ids), sequence.sequence_id))
            token_ids += sequence.token_ids
            positions += span
            slots += [table[p // page_size] * page_size + p % page_size for p in span]
            num_sampled = len(sequence.sampling)
            sampled_rows += range(len(token_ids) - num_sampled, len(token_ids))
            sampled_ids += [sequence.sequence_id] * num_sampled
            jobs += sequence.sampling

        parts = (token_ids, positions, slots, sampled_rows, state_rows)
        together = uploads([number for part in parts for number in part], torch.int64)
        on_device = torch.split(together, [len(part) for part in parts])
        return cls(
            decodes=decodes,
            prefills=prefills,
            token_ids=on_device[0],
            positions=on_device[1],
            slots=on_device[2],
            sampled_rows=on_device[3],
            sampled_ids=sampled_ids,
            jobs=jobs,
            scorings=scorings,
            state_rows=on_device[4],
            num_states=num_states,
            pending=pending,
            uploads=uploads,
        )
