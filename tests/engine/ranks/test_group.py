"""Process groups: what they compute together, and how they fail."""

from __future__ import annotations

import pytest
import torch

from services.engine.ranks.addresses import host_of, host_of_peer, own_address
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.group import RankGroup, open_store, reach_store
from tests.engine.ranks.thread_ranks import LOOPBACK, together
from tests.support.ports import free_ports

SHORT = 0.3  # seconds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_everywhere_and_gathered_tensors_at_rank_0(dtype: torch.dtype) -> None:
    def work(group: RankGroup) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x = torch.full((2, 3), float(group.rank + 1), dtype=dtype)
        return group.sum(x.clone()), group.gather(x)

    results = together(3, work)
    for total, _ in results:
        assert torch.equal(total, torch.full((2, 3), 6.0, dtype=dtype))
    assert [float(part[0, 0]) for part in results[0][1]] == [1.0, 2.0, 3.0]
    assert results[1][1] == results[2][1] == []


def test_who_waits_for_a_rank_that_hangs_gives_up() -> None:
    def work(group: RankGroup) -> None:
        if group.rank == 0:
            with pytest.raises(GroupLost, match="rank 0 waited for another rank in vain"):
                group.sum(torch.ones(1))
            with pytest.raises(GroupLost, match="in vain"):  # nor is another one tried
                group.sum(torch.ones(1))
            group.leave()

    together(2, work, timeout=SHORT)


def test_a_group_that_is_not_complete_does_not_form() -> None:
    store, _ = open_store(LOOPBACK, SHORT)
    with pytest.raises(GroupLost, match="rank 0 cannot connect"):
        RankGroup(0, 2, SHORT, SHORT).form(store, LOOPBACK)


def test_a_store_that_is_not_there() -> None:
    (port,) = free_ports(1)
    with pytest.raises(GroupLost, match=f"no store at 127.0.0.1:{port}"):
        reach_store(LOOPBACK, port, SHORT)


def test_addresses() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert host_of_peer("ipv4:10.0.0.2:40000") == "10.0.0.2"
    assert host_of_peer("ipv6:%5B::1%5D:40000") == "::1"
    assert host_of("[::1]:50052") == "::1"
    assert host_of("engine:50052") == "engine"
