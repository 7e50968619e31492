"""Random schedules: whatever happens around it, a sequence has the output or the embedding of its lone run, and no page
is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.engine.scheduler.pooling import Pooling
from services.engine.scheduler.sequence import FinishReason, Sequence
from tests.engine.scheduler.harness import Harness, prompt

token_ids = st.lists(st.integers(0, 1), min_size=1, max_size=5)  # few, so that some requests are equal


class RandomSchedule(RuleBasedStateMachine):
    """Requests, aborts, failures and steps in any order; the harness checks the accounting at every plan and apply."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []

    @initialize(
        num_pages=st.integers(8, 20),
        page_size=st.sampled_from([1, 2, 4]),
        max_batch_tokens=st.integers(4, 24),
        max_num_seqs=st.integers(1, 4),
        max_finishing_tokens=st.sampled_from([0, 1, 3]),
        predictable=st.booleans(),
        overlapping=st.booleans(),
    )
    def start(
        self,
        *,
        num_pages: int,
        page_size: int,
        max_batch_tokens: int,
        max_num_seqs: int,
        max_finishing_tokens: int,
        predictable: bool,
        overlapping: bool,
    ) -> None:
        self.engine = Harness(
            num_pages=num_pages,
            page_size=page_size,
            vocab_size=5,  # few ids: prompts and outputs coincide often
            max_batch_tokens=max_batch_tokens,
            max_num_seqs=max_num_seqs,
            max_finishing_tokens=max_finishing_tokens,
            predictable=predictable,
            overlapping=overlapping,
        )

    @rule(
        priority=st.integers(-1, 1),
        prefix=st.tuples(st.integers(0, 2), st.sampled_from([0, 7, 8, 30])),
        tail=token_ids,
        max_tokens=st.integers(1, 24),
        min_tokens=st.integers(0, 6),
        stop_ids=st.frozensets(st.integers(0, 4), max_size=2),
        salt=st.sampled_from(["", "", "tenant"]),
        max_guesses=st.sampled_from([0, 1, 3, 9]),
        pooling=st.sampled_from([None, None, None, *Pooling]),
    )
    def add(
        self,
        *,
        priority: int,
        prefix: tuple[int, int],
        tail: list[int],
        max_tokens: int,
        min_tokens: int,
        stop_ids: frozenset[int],
        salt: str,
        max_guesses: int,
        pooling: Pooling | None,
    ) -> None:
        seed, length = prefix
        prompt_ids = [token_id % 5 for token_id in prompt(length, seed)] + tail
        self.sequences.append(
            self.engine.add(
                prompt_ids[: self.engine.info.max_model_len - 1],
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                stop_ids=stop_ids,
                cache_salt=salt,
                priority=priority,
                max_guesses=max_guesses,
                pooling=pooling,
            )
        )

    @rule(steps=st.integers(1, 12))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @precondition(lambda self: self.engine.num_in_flight == 0)
    @rule()
    def plan(self) -> None:
        self.engine.plan()

    @precondition(lambda self: self.engine.num_in_flight == 1 and self.engine.overlapping)
    @rule()
    def plan_ahead(self) -> None:
        self.engine.plan_ahead()

    @precondition(lambda self: self.engine.num_in_flight)
    @rule()
    def apply(self) -> None:
        self.engine.apply()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        alive = sequence.finish_reason is None
        assert self.engine.scheduler.abort(sequence.sequence_id) is alive
        assert sequence.finish_reason is not None
        self.engine.scheduler.check_integrity()

    @precondition(lambda self: self.engine.num_in_flight)
    @rule(chance=st.integers(0, 9))
    def fail(self, chance: int) -> None:
        if chance:
            return
        alive = [s for s in self.sequences if s.finish_reason is None]
        assert self.engine.reset() == alive
        self.engine.scheduler.check_integrity()
        self.engine.assert_idle()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        self.engine.assert_idle()
        for sequence in self.sequences:
            if sequence.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}:
                self.engine.assert_complete(sequence)
            else:
                received = self.engine.received[sequence.sequence_id]
                assert received == sequence.output_ids == self.engine.expected(sequence)[: len(received)]


RandomSchedule.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRandomSchedules = RandomSchedule.TestCase
