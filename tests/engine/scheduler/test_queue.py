import pytest

from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.queue import RankedQueue
from services.engine.scheduler.sequence import Sequence


def sequence(sequence_id: int, rank: tuple[int, int]) -> Sequence:
    made = Sequence(sequence_id, [1], SamplingParams(), StopParams(max_tokens=1), arrival_ns=0)
    made.rank = rank
    return made


def test_order_is_by_rank_whatever_the_order_of_arrival() -> None:
    queue = RankedQueue()
    for index, rank in enumerate([(5, 1), (-3, 2), (5, 0)]):
        queue.add(sequence(index, rank))
    assert [s.sequence_id for s in queue] == [1, 2, 0]
    assert [s.sequence_id for s in reversed(queue)] == [0, 2, 1]
    assert queue.first.sequence_id == 1


def test_remove_takes_the_very_sequence_and_no_other() -> None:
    queue = RankedQueue()
    inside, twin = sequence(1, (0, 1)), sequence(2, (0, 1))
    queue.add(inside)
    with pytest.raises(ValueError, match="sequence 2 is not in the queue"):
        queue.remove(twin)
    queue.remove(inside)
    assert len(queue) == 0
    with pytest.raises(ValueError, match="sequence 1 is not in the queue"):
        queue.remove(inside)
