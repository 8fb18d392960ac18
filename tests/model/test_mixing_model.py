"""Mixing against a simulation that gives out one sample after another and remembers everything."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.ordering import mixing, rng
from feedd.ordering.mixing import BATCH, BATCH_SAMPLE, MODES, SAMPLE, MixOptions, Mixture
from tests.budget import budget


def one_by_one(weights: list[int], count: int) -> list[int]:
    """Give each place to the source with the greatest weight for each half of what it would have (Sainte-Laguë)."""
    counts = [0] * len(weights)
    sources = []
    for _ in range(count):
        averages = [Fraction(weight, 2 * given + 1) for weight, given in zip(weights, counts, strict=True)]
        source = averages.index(max(averages))
        counts[source] += 1
        sources.append(source)
    return sources


def until_one_ends(weights: list[int], held: list[int]) -> int:
    """Return how many places are given before a source would give more than it holds."""
    sources = one_by_one(weights, sum(held) + 1)
    left = list(held)
    for place, source in enumerate(sources):
        if not left[source]:
            return place
        left[source] -= 1
    raise AssertionError("something must end")


def shuffled(sources: list[int], seed: int, epoch: int, block: int) -> list[int]:
    """Shuffle each block of places with its own key."""
    found = []
    for number, low in enumerate(range(0, len(sources), block)):
        part = sources[low : low + block]
        order = rng.permutation(len(part), rng.derive(16, seed, epoch, number))
        found += [part[at] for at in order.tolist()]
    return found


@settings(max_examples=budget(200), deadline=None)
@given(
    by_epoch=st.lists(
        st.lists(st.integers(0, 12), min_size=4, max_size=4).filter(any),
        min_size=1,
        max_size=3,
    ),
    mode=st.sampled_from(MODES),
    batch=st.integers(1, 4),
    block=st.integers(1, 40),
    held=st.lists(st.integers(4, 40), min_size=4, max_size=4),
    end=st.one_of(st.none(), st.integers(1, 60)),
    seed=st.integers(0, 2**64 - 1),
)
def test_as_simulated(
    by_epoch: list[list[int]],
    mode: str,
    batch: int,
    block: int,
    held: list[int],
    end: int | None,
    seed: int,
) -> None:
    """Every row of four epochs, read in windows of odd sizes, is what the simulation gives out."""
    by_batch = mode in {BATCH, BATCH_SAMPLE}
    unit = batch if by_batch else 1
    options = MixOptions(
        seed,
        mode,
        batch if by_batch else 0,
        source_samples=tuple(held),
        samples_per_epoch=None if end is None else end * unit,
    )
    given_out = [0] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_BLOCK", block)  # its length is part of the order; short ones show more
        mixture = Mixture(dict(enumerate(by_epoch)), options)
        for epoch in range(4):
            weights = by_epoch[min(epoch, len(by_epoch) - 1)]
            length = end if end is not None else until_one_ends(weights, [size // unit for size in held])
            units = one_by_one(weights, length)
            if mode in {SAMPLE, BATCH_SAMPLE}:
                units = shuffled(units, seed, epoch, block)
            expected = []
            for source in [source for source in units for _ in range(unit)]:
                position = given_out[source]
                expected.append((source, position))
                given_out[source] += 1
            assert mixture.epoch_samples(epoch) == len(expected)
            found = []
            for first in range(0, len(expected) + 7, 7):
                columns = [column.tolist() for column in mixture.rows(epoch, first, 7)]
                found += list(zip(*columns, strict=True))
            assert found == expected
        assert mixture.starts(4).tolist() == given_out
