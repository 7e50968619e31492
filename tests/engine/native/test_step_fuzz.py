"""Random plans (lengths, chunkings, scattered, shared and reused pages, page sizes, batches) against the reference."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import postroad_native
import pytest

from services.engine.plan import SequencePlan
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.native.oracles import TorchStepper, quantized_decoder, rounded_decoder
from tests.engine.native.quantizing import FORMATS
from tests.engine.native.stepping import native_model, plan, step

NUM_PAGES = 60
STEPS = 16


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
        self.page_size = self.rng.choice([16, 32, 48])
        self._users: Counter[int] = Counter()
        self._free = self.rng.sample(range(NUM_PAGES), NUM_PAGES)
        self._running: list[_Sequence] = []

    def plans(self) -> list[SequencePlan]:
        for _ in range(self.rng.randint(0, 3)):
            self._arrive()
        if not self._running:
            self._arrive()
        members = self.rng.sample(self._running, self.rng.randint(1, len(self._running)))
        plans = [sequence.next_plan(self.rng) for sequence in members]
        for sequence in [sequence for sequence in self._running if sequence.is_done]:
            self._leave(sequence)
        return plans

    def _leave(self, sequence: _Sequence) -> None:
        """Its pages, with what they hold, are for others as soon as nobody else has them."""
        self._running.remove(sequence)
        self._users.subtract(sequence.pages)
        self._free += [page for page in sequence.pages if not self._users[page]]
        self.rng.shuffle(self._free)

    def _arrive(self) -> None:
        token_ids = [self.rng.randrange(97) for _ in range(self.rng.choice([1, 2, 15, 16, 17, 40, 100, 280]))]
        shared: list[int] = []
        if self._running and self.rng.random() < 0.4:
            donor = self.rng.choice(self._running)
            shared = donor.pages[: donor.computed // self.page_size]
            token_ids = donor.token_ids[: len(shared) * self.page_size] + token_ids
        needed = -(-len(token_ids) // self.page_size) - len(shared)
        if needed > len(self._free):
            return
        pages = shared + [self._free.pop() for _ in range(needed)]
        self._users.update(pages)
        self._running.append(_Sequence(token_ids, pages, len(shared) * self.page_size))


@pytest.mark.parametrize("isa", postroad_native.supported_isas())
@pytest.mark.parametrize("quantization", FORMATS)
def test_random_plans_of_quantized_models(quantization: str, isa: str) -> None:
    """Beside a reference with the same rounded weights. What is left is the rounding of activations to 8 bits."""
    traffic = _Traffic(10 + FORMATS.index(quantization))
    config = FAMILIES[traffic.rng.choice(sorted(FAMILIES))]
    pool = {"num_pages": NUM_PAGES, "page_size": traffic.page_size}
    model = native_model(config, quantization=quantization, isa=isa, threads=2, **pool)
    reference = TorchStepper.of(quantized_decoder(config, quantization), **pool)
    for _ in range(STEPS):
        plans = traffic.plans()
        actual, expected = step(model, *plans), reference.step(*plans)
        assert np.square(actual - expected).mean() < 0.06**2 * np.square(expected).mean(), str(plans)


@pytest.mark.parametrize("isa", postroad_native.supported_isas())
@pytest.mark.parametrize("seed", range(10))
def test_random_plans_equal_the_reference(seed: int, isa: str) -> None:
    traffic = _Traffic(seed)
    family = traffic.rng.choice(sorted(FAMILIES))
    weight_format = ("f32", "bf16")[seed % 2]
    config = FAMILIES[family]
    pool = {"num_pages": NUM_PAGES, "page_size": traffic.page_size}
    model = native_model(config, isa=isa, weight_format=weight_format, threads=traffic.rng.randint(1, 3), **pool)
    reference = TorchStepper.of(decoder(config) if weight_format == "f32" else rounded_decoder(config), **pool)
    tolerance = 1e-4 if weight_format == "f32" else 0.12
    for _ in range(STEPS):
        plans = traffic.plans()
        np.testing.assert_allclose(
            step(model, *plans), reference.step(*plans), atol=tolerance, rtol=tolerance, err_msg=f"{family}, {plans}"
        )
