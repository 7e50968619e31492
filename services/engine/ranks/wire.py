"""Messages of ranks.proto ↔ what ranks work with."""

from __future__ import annotations

import dataclasses

from services.engine.plan import PENDING_TOKEN, SamplingJob, SamplingParams, ScoringJob, SequencePlan, StepPlan
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.loaded import LoadedRank
from services.pb.postroad.v1 import ranks_pb2

_FIELDS = [field.name for field in dataclasses.fields(RankIdentity)]


def identity_message(identity: RankIdentity) -> ranks_pb2.RankIdentity:
    return ranks_pb2.RankIdentity(**dataclasses.asdict(identity))


def identity_from(message: ranks_pb2.RankIdentity) -> RankIdentity:
    return RankIdentity(**{name: getattr(message, name) for name in _FIELDS})


def loaded_message(loaded: LoadedRank) -> ranks_pb2.RankLoaded:
    return ranks_pb2.RankLoaded(max_pages=loaded.max_pages, gpu_uuid=loaded.gpu_uuid)


def loaded_from(message: ranks_pb2.RankLoaded) -> LoadedRank:
    return LoadedRank(message.max_pages, message.gpu_uuid)


def plan_message(plan: StepPlan, epoch: int) -> ranks_pb2.ToRank:
    """What the ranks need of a plan: no sampling parameters, as rank 0 alone samples."""
    message = ranks_pb2.ToRank()
    message.plan.epoch, message.plan.number = epoch, plan.number
    for sequence in plan.sequences:
        is_pending = sequence.token_ids[0] == PENDING_TOKEN
        entry = message.plan.sequences.add(
            token_ids=() if is_pending else sequence.token_ids,
            pending=is_pending,
            start=sequence.start,
            page_table=sequence.page_table,
            num_sampled=len(sequence.sampling),
        )
        if sequence.scoring is not None:
            entry.first_scored, entry.num_scored = sequence.scoring.first_row, len(sequence.scoring.next_ids)
    return message


def plan_from(message: ranks_pb2.RankPlan) -> StepPlan:
    """A plan for a rank that samples nothing: its jobs say how many logits are wanted and no more."""
    job = SamplingJob(SamplingParams(), (), ())
    return StepPlan(
        message.number,
        [
            SequencePlan(
                sequence_id=index,
                token_ids=[PENDING_TOKEN] if entry.pending else list(entry.token_ids),
                start=entry.start,
                page_table=list(entry.page_table),
                sampling=[job] * entry.num_sampled,
                scoring=ScoringJob(entry.first_scored, [0] * entry.num_scored, 0) if entry.num_scored else None,
            )
            for index, entry in enumerate(message.sequences)
        ],
    )
