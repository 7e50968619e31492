"""The steps that take the most memory beside weights and KV pool: run once, they tell how much to leave for them."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan


@dataclass(frozen=True, slots=True)
class ProfileSteps:
    """Step plans for a KV pool of `num_pages`, whose content they void."""

    plans: list[StepPlan]
    num_pages: int

    @classmethod
    def of(cls, max_batch_tokens: int, max_num_seqs: int, max_model_len: int, page_size: int) -> ProfileSteps:
        """A step with as many sequences as may run, all of which sample; and the last chunk of the longest prompt."""
        num_sequences = min(max_num_seqs, max_batch_tokens)
        length = min(max_batch_tokens // num_sequences, max_model_len)
        pages = -(-length // page_size)
        many = [_prompt(i, length, 0, list(range(i * pages, (i + 1) * pages))) for i in range(num_sequences)]
        chunk = min(max_batch_tokens, max_model_len)
        start = max_model_len - chunk
        first = start // page_size
        # What comes before the chunk need not be there: any page will do for it.
        table = [max(0, page - first) for page in range(-(-max_model_len // page_size))]
        plans = [StepPlan(1, many), StepPlan(2, [_prompt(0, chunk, start, table)])]
        return cls(plans, max(num_sequences * pages, max(table) + 1))


def _prompt(sequence_id: int, length: int, start: int, page_table: list[int]) -> SequencePlan:
    """With all that cuts a distribution, which is the sampling that takes the most memory."""
    job = SamplingJob(SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01), prompt_ids=[0], output_ids=[])
    return SequencePlan(sequence_id, [0] * length, start, page_table, [job])
