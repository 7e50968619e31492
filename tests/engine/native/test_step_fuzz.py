"""Random plans (lengths, chunkings, scattered and shared pages, batches) against the torch reference."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import postroad_native
import pytest

from services.engine.plan import SequencePlan
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.native.oracles import TorchStepper, rounded_decoder
from tests.engine.native.stepping import PAGE_SIZE, native_model, plan, step

NUM_PAGES = 160
STEPS = 12


@dataclass
class _Sequence:
    token_ids: list[int]
    pages: list[int]
    computed: int

    @property
    def is_done(self) -> bool:
        return self.computed == len(self.token_ids)

    def next_plan(self, rng: random.Random) -> SequencePlan:
        left = len(self.token_ids) - self.computed
        count = rng.choice([1, min(left, 5), rng.randint(1, left), left])
        start, self.computed = self.computed, self.computed + count
        return plan(self.token_ids[start : start + count], self.pages, start)


class _Traffic:
    """Sequences that come and go over a pool of pages; some begin with the full pages of another one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._free = self.rng.sample(range(NUM_PAGES), NUM_PAGES)
        self._running: list[_Sequence] = []

    def plans(self) -> list[SequencePlan]:
        for _ in range(self.rng.randint(0, 3)):
            self._arrive()
        if not self._running:
            self._arrive()
        members = self.rng.sample(self._running, self.rng.randint(1, len(self._running)))
        plans = [sequence.next_plan(self.rng) for sequence in members]
        self._running = [sequence for sequence in self._running if not sequence.is_done]
        return plans

    def _arrive(self) -> None:
        token_ids = [self.rng.randrange(97) for _ in range(self.rng.choice([1, 2, 15, 16, 17, 40, 100, 280]))]
        shared: list[int] = []
        if self._running and self.rng.random() < 0.4:
            donor = self.rng.choice(self._running)
            shared = donor.pages[: donor.computed // PAGE_SIZE]
            token_ids = donor.token_ids[: len(shared) * PAGE_SIZE] + token_ids
        needed = -(-len(token_ids) // PAGE_SIZE) - len(shared)
        if needed > len(self._free):
            return
        pages = shared + [self._free.pop() for _ in range(needed)]  # pages are not reused: donors may have finished
        self._running.append(_Sequence(token_ids, pages, len(shared) * PAGE_SIZE))


@pytest.mark.parametrize("isa", postroad_native.supported_isas())
@pytest.mark.parametrize("seed", range(4))
def test_random_plans_equal_the_reference(seed: int, isa: str) -> None:
    traffic = _Traffic(seed)
    family = traffic.rng.choice(sorted(FAMILIES))
    weight_format = ("f32", "bf16")[seed % 2]
    config = FAMILIES[family]
    model = native_model(config, isa=isa, weight_format=weight_format, threads=2, num_pages=NUM_PAGES)
    reference = TorchStepper.of(decoder(config) if weight_format == "f32" else rounded_decoder(config), NUM_PAGES)
    tolerance = 1e-4 if weight_format == "f32" else 0.12
    for _ in range(STEPS):
        plans = traffic.plans()
        np.testing.assert_allclose(
            step(model, *plans), reference.step(*plans), atol=tolerance, rtol=tolerance, err_msg=f"{family}, {plans}"
        )
