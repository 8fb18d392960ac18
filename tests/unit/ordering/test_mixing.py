"""Which dataset each sample comes from: shares, orders that never change, ends of epochs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadRequest
from feedd.ordering import mixing, rng
from feedd.ordering import weighted_interleave as even
from feedd.ordering.mixing import BATCH, BATCH_SAMPLE, MODES, SAMPLE, STRATIFIED, MixOptions, Mixture, Weights
from tests.budget import budget

_PARTS = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)


def _batch(mode: str, size: int) -> int:
    return size if mode in {BATCH, BATCH_SAMPLE} else 0


@pytest.mark.parametrize("mode", MODES)
def test_orders_are_pinned(mode: str) -> None:
    """Stored rows, in the middle of an epoch and across two blocks, stay what they are in every release."""
    mixture = Mixture((0.5, 0.3, 0.2), MixOptions(7, mode, _batch(mode, 2), samples_per_epoch=200_000))
    sources, positions = [], []
    for epoch, first in ((0, 0), (1, 65_530), (2, 131_066)):
        source, position = mixture.rows(epoch, first, 12)
        assert source.dtype == np.int32
        assert position.dtype == np.int64
        sources.append("".join(map(str, source.tolist())))
        positions.append(position[-3:].tolist())
    assert (sources, positions) == PINNED[mode]


def test_domain_and_block_are_pinned() -> None:
    """The domain of the random numbers is no other's, and neither it nor the length of a block ever changes."""
    assert mixing.MIX == 16
    assert mixing.MIX not in {rng.SHARDS, rng.SAMPLES, rng.AUGMENT}
    assert mixing._BLOCK == 65_536


@settings(max_examples=budget(100), deadline=None)
@given(parts=_PARTS, far=st.integers(0, 10**12))
@pytest.mark.slow
def test_shares_are_even(parts: list[int], far: int) -> None:
    """After any n samples each count is within (1 + w (k - 2)) / 2 of its share: below 1 for up to three sources."""
    total, positive = sum(parts), sum(part > 0 for part in parts)
    mixture = Mixture(parts, MixOptions(0))
    source, position = mixture.rows(0, far, 300)
    counts = even.interleaved_counts(np.array(parts), far).tolist()
    assert sum(counts) == far
    for n, (who, at) in enumerate(zip(source.tolist(), position.tolist(), strict=True), start=far + 1):
        assert counts[who] == at
        counts[who] += 1
        for part, count in zip(parts, counts, strict=True):
            share = Fraction(n * part, total)
            bound = (1 + Fraction(part, total) * (positive - 2)) / 2
            assert abs(count - share) <= bound
            assert bound < positive
            assert positive > 3 or bound < 1


@settings(max_examples=budget(60), deadline=None)
@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    mode=st.sampled_from(MODES),
    first=st.integers(0, 200_000),
    counts=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    epoch=st.integers(0, 2),
)
def test_windows_agree(weights: list[float], mode: str, first: int, counts: tuple[int, int], epoch: int) -> None:
    """Two windows, read by mixtures of their own, are what one window over both is."""
    options = MixOptions(3, mode, _batch(mode, 5), samples_per_epoch=200_000)
    one, two = counts
    whole = Mixture(weights, options).rows(epoch, first, one + two)
    parts = Mixture(weights, options).rows(epoch, first, one), Mixture(weights, options).rows(epoch, first + one, two)
    for column in (0, 1):
        assert np.concatenate([part[column] for part in parts]).tolist() == whole[column].tolist()
    assert whole[0].shape[0] == max(min(one + two, 200_000 - first), 0)


@settings(max_examples=budget(40), deadline=None)
@given(
    by_epoch=st.lists(st.tuples(*[st.integers(0, 9)] * 3).filter(any), min_size=3, max_size=3),
    mode=st.sampled_from(MODES),
    batches=st.integers(1, 70),
    batch=st.integers(1, 5),
)
def test_positions_have_no_gaps(by_epoch: list[tuple[int, int, int]], mode: str, batches: int, batch: int) -> None:
    """Over epochs of differing weights each source gives 0, 1, 2, ... in order; ``starts`` says where each begins."""
    options = MixOptions(1, mode, _batch(mode, batch), samples_per_epoch=batches * batch)
    mixture = Mixture({epoch: by_epoch[epoch % 3] for epoch in range(6)}, options)
    given_out: list[list[int]] = [[], [], []]
    for epoch in range(5):
        assert mixture.starts(epoch).tolist() == [len(positions) for positions in given_out]
        source, position = mixture.rows(epoch, 0, batches * batch + 9)
        assert source.shape[0] == batches * batch == mixture.epoch_samples(epoch)
        for who, at in zip(source.tolist(), position.tolist(), strict=True):
            given_out[who].append(at)
    assert given_out == [list(range(len(positions))) for positions in given_out]


@settings(max_examples=budget(60), deadline=None)
@given(
    parts=_PARTS,
    held=st.lists(st.integers(1, 200), min_size=7, max_size=7),
    mode=st.sampled_from(MODES),
    step=st.integers(1, 5),
)
def test_epochs_are_whole_steps(parts: list[int], held: list[int], mode: str, step: int) -> None:
    """An epoch ends with the last whole step that the sources have, and the next one goes on where it ended."""
    batch = _batch(mode, 3)
    sizes = tuple(size + 15 for size in held[: len(parts)])
    step_samples = step * (batch or 1)
    options = MixOptions(4, mode, batch, sizes)
    whole = Mixture(parts, options).epoch_samples(0)
    assert whole is not None
    if whole < step_samples:
        return
    stepped = Mixture(parts, replace(options, step_samples=step_samples))
    assert stepped.epoch_samples(7) == whole // step_samples * step_samples
    source, position = stepped.rows(0, 0, whole)
    for who, first in enumerate(stepped.starts(1).tolist()):
        assert position[source == who].tolist() == list(range(first))


def test_another_seed_draws_otherwise() -> None:
    """The same mixture with another seed has the same shares, epochs and weights, and another order where drawn."""
    for mode in (STRATIFIED, SAMPLE):
        one = Mixture((2, 1), MixOptions(1, mode, samples_per_epoch=300))
        one.rows(0, 0, 300)
        other = one.with_seed(2)
        assert other.rows(0, 0, 300)[0].tolist() == (
            Mixture((2, 1), MixOptions(2, mode, samples_per_epoch=300)).rows(0, 0, 300)[0].tolist()
        )
        assert (other.rows(0, 0, 300)[0].tolist() == one.rows(0, 0, 300)[0].tolist()) == (mode == STRATIFIED)
        assert other.ratios == one.ratios == ((0, (2, 1)),)
        assert other.parts(5).tolist() == [2, 1]


def test_no_gaps_across_blocks() -> None:
    """The drawn modes shuffle blocks; across their edges and the short last one positions are 0, 1, 2, ... as well."""
    for mode, end in ((SAMPLE, 150_000), (BATCH_SAMPLE, 2 * 70_000)):
        source, position = Mixture((3, 2, 0, 1), MixOptions(9, mode, _batch(mode, 2), None, end)).rows(0, 0, end)
        for who in range(4):
            own = position[source == who]
            assert own.tolist() == list(range(own.shape[0]))


def test_drawn_blocks_hold_their_quota() -> None:
    """Every whole block has the even order's counts, is shuffled, and is another one in another epoch and seed."""
    options = MixOptions(5, SAMPLE, samples_per_epoch=200_000)
    evenly = Mixture((7, 2, 1), MixOptions(5, STRATIFIED, samples_per_epoch=200_000))
    drawn = Mixture((7, 2, 1), options)
    for epoch, first in ((0, 0), (0, 65_536), (3, 131_072)):
        count = min(65_536, 200_000 - first)
        ours, theirs = (mixture.rows(epoch, first, count)[0] for mixture in (drawn, evenly))
        assert np.bincount(ours).tolist() == np.bincount(theirs).tolist()
        assert ours.tolist() != theirs.tolist()
    other_seed = Mixture((7, 2, 1), MixOptions(6, SAMPLE, samples_per_epoch=200_000))
    orders = [drawn.rows(0, 0, 99), drawn.rows(1, 0, 99), drawn.rows(0, 65_536, 99), other_seed.rows(0, 0, 99)]
    assert len({tuple(source.tolist()) for source, _ in orders}) == 4


def test_draws_look_drawn() -> None:
    """Pairs of neighbours come as often as independent draws have them: chi-square below the 0.1 % bound."""
    source, _ = Mixture((1, 1, 2), MixOptions(11, SAMPLE)).rows(0, 0, 65_536)
    pairs = np.bincount(source[0::2] * 3 + source[1::2], minlength=9)
    weight = np.array([0.25, 0.25, 0.5])
    expected = 32_768 * np.outer(weight, weight).ravel()
    assert float(((pairs - expected) ** 2 / expected).sum()) < 26.1  # 8 degrees of freedom


@pytest.mark.parametrize("mode", [BATCH, BATCH_SAMPLE])
def test_batches_are_of_one_source(mode: str) -> None:
    """A batch's rows are one source's, consecutive; and with four to one, batches are four to one."""
    source, position = Mixture((4, 1), MixOptions(2, mode, 8, samples_per_epoch=8_000)).rows(0, 0, 8_000)
    by_batch = source.reshape(-1, 8)
    assert (by_batch == by_batch[:, :1]).all()
    assert (np.diff(position.reshape(-1, 8), axis=1) == 1).all()
    assert np.bincount(by_batch[:, 0]).tolist() == [800, 200]


@settings(max_examples=budget(60), deadline=None)
@given(parts=_PARTS, held=st.lists(st.integers(1, 200), min_size=7, max_size=7), mode=st.sampled_from(MODES))
def test_epoch_ends_with_the_first_source(parts: list[int], held: list[int], mode: str) -> None:
    """No source gives more than it holds, one gives all its whole batches and would come next, in every epoch."""
    batch = _batch(mode, 3)
    unit = batch or 1
    sizes = tuple(size + unit for size in held[: len(parts)])
    mixture = Mixture(parts, MixOptions(4, mode, batch, sizes))
    samples = mixture.epoch_samples(0)
    assert samples is not None
    counts = mixture.starts(1)
    assert counts.sum() == samples
    assert (counts <= np.array(sizes)).all()
    last = Mixture(parts, MixOptions(4)).rows(0, samples // unit, 1)[0][0]
    assert counts[last] == sizes[last] // unit * unit
    assert (mixture.starts(2) == 2 * counts).all()


def test_a_source_that_runs_out_begins_again() -> None:
    """Positions go on over the source's end without a gap."""
    mixture = Mixture((1, 1), MixOptions(0, source_samples=(4, 10), samples_per_epoch=16))
    rows = mixture.rows(1, 0, 16)
    assert rows[1][rows[0] == 0].tolist() == list(range(8, 16))
    assert rows[1][rows[0] == 1].tolist() == list(range(8, 16))


def test_weights_hold_until_others_do() -> None:
    """Weights by epoch hold from theirs on; a source of weight 0 pauses and goes on where it was."""
    mixture = Mixture({0: (1, 1), 2: (1, 0), 3: (0, 1)}, MixOptions(0, samples_per_epoch=4))
    assert [mixture.starts(epoch).tolist() for epoch in range(6)] == [[0, 0], [2, 2], [4, 4], [8, 4], [8, 8], [8, 12]]
    assert mixture.rows(3, 0, 9)[1].tolist() == [4, 5, 6, 7]


def test_epochs_in_turn() -> None:
    """Reading epochs in turn, as where one drains while the next fills, gives what each gives alone."""
    options = MixOptions(8, SAMPLE, samples_per_epoch=300)
    weights = {epoch: (1 + epoch, 2) for epoch in range(8)}
    together = Mixture(weights, options)
    for first in range(0, 300, 50):
        for epoch in (6, 7, 0):
            alone = Mixture(weights, options).rows(epoch, first, 50)
            assert [column.tolist() for column in together.rows(epoch, first, 50)] == [c.tolist() for c in alone]


def test_weights_become_the_simplest_ratio() -> None:
    """0.7, 0.2 and 0.1 are 7 : 2 : 1; what has no such ratio is right to one part in 16,777,216."""
    assert even.to_parts((0.7, 0.2, 0.1)).tolist() == [7, 2, 1]
    assert even.to_parts((1 / 3, 2 / 3)).tolist() == [1, 2]
    assert even.to_parts((1e-9, 3e-9)).sum() <= even.MAX_PARTS
    weights = (2**0.5, 3**0.5, 1.0)
    parts = even.to_parts(weights)
    assert parts.sum() == even.MAX_PARTS
    assert all(
        abs(part / even.MAX_PARTS - weight / sum(weights)) < 1 / even.MAX_PARTS
        for part, weight in zip(parts.tolist(), weights, strict=True)
    )


def test_largest_weights_compare_exactly() -> None:
    """With 2**24 parts, around the end of a period, the order is that of exact fractions."""
    parts = even.to_parts((2**0.5, 3**0.5, 1.0)).tolist()
    total = sum(parts)
    source, position = Mixture(parts, MixOptions(0)).rows(0, total - 500, 1_000)
    due = [Fraction(2 * at + 1, 2 * parts[who]) for who, at in zip(source.tolist(), position.tolist(), strict=True)]
    keys = list(zip(due, source.tolist(), strict=True))
    assert keys == sorted(keys)
    assert [
        even.interleaved_position(np.array(parts), who, at) for who, at in zip(source, position.tolist(), strict=True)
    ] == [*range(total - 500, total + 500)]


def test_past_the_end_there_is_nothing() -> None:
    """A span past the end is empty, one across it is cut."""
    for mode in MODES:
        mixture = Mixture((1, 2), MixOptions(0, mode, _batch(mode, 5), samples_per_epoch=25))
        assert mixture.rows(0, 23, 9)[0].shape == (2,)
        assert mixture.rows(0, 25, 9)[0].shape == mixture.rows(1, 99, 9)[1].shape == mixture.rows(0, 3, 0)[0].shape
        assert mixture.rows(0, 99, 9)[0].shape == (0,)


@pytest.mark.parametrize(
    ("weights", "options", "why"),
    [
        ((), MixOptions(0), "one of them positive"),
        ((0, 0), MixOptions(0), "one of them positive"),
        ((1, -1), MixOptions(0), "at least 0"),
        ((1, float("nan")), MixOptions(0), "at least 0"),
        ((1, 1e-12), MixOptions(0), "of source 1"),
        ((1, 1), MixOptions(0, "zip"), "'zip'"),
        ((1, 1), MixOptions(0, BATCH), "batch size"),
        ((1, 1), MixOptions(0, BATCH, 4, samples_per_epoch=6), "multiple of 4"),
        ((1, 1), MixOptions(0, samples_per_epoch=0), "positive"),
        ((1, 1), MixOptions(0, samples_per_epoch=1 << 63), "positive"),
        ((1, 1), MixOptions(0, source_samples=(1,)), "sizes of 2 sources"),
        ((1, 1), MixOptions(0, source_samples=(1, -1)), "sizes of sources"),
        ((1, 1), MixOptions(0, source_samples=(1, 0)), "in source 1"),
        ((1, 1), MixOptions(0, BATCH, 4, source_samples=(4, 3)), "at least 4 samples in source 1"),
        ((1, 1), MixOptions(0, BATCH, 4, step_samples=6), "whole batches of 4, got 6"),
        ((1, 1), MixOptions(0, samples_per_epoch=12, step_samples=8), "multiple of 8, got 12"),
        ((1, 1), MixOptions(0, source_samples=(9, 3), step_samples=8), "a step of 8 before source 1 ends.*got 7"),
        ({1: (1, 1)}, MixOptions(0), "from epoch 0"),
        ({0: (1, 1), 4: (0, 0)}, MixOptions(0, samples_per_epoch=4), "one of them positive"),
        ({0: (1, 1), 1: (1, 1, 1)}, MixOptions(0, samples_per_epoch=4), "2 sources in epoch 1"),
    ],
)
def test_what_cannot_be_mixed_is_refused(weights: Weights, options: MixOptions, why: str) -> None:
    """Weights and options that make no mixture are refused by name, before anything is read."""
    with pytest.raises(BadRequest, match=why):
        Mixture(weights, options)


def test_what_cannot_be_asked_is_refused() -> None:
    """Epochs after one without end, other numbers of sources, and spans of no sense are refused."""
    endless = Mixture((1, 1), MixOptions(0))
    assert endless.epoch_samples(0) is None
    with pytest.raises(BadRequest, match="an end of mixed epochs"):
        endless.rows(1, 0, 1)
    with pytest.raises(BadRequest, match="epoch of at least 0"):
        endless.rows(-1, 0, 1)
    for first, count in ((-1, 1), (0, -1), (0, mixing.MAX_ROWS + 1)):
        with pytest.raises(BadRequest, match="samples from sample 0"):
            endless.rows(0, first, count)
    far = Mixture({0: (1, 0), 3: (1, 1)}, MixOptions(0, samples_per_epoch=1 << 20))
    assert far.starts(1 << 40).tolist() == [(3 << 20) + (((1 << 40) - 3) << 19), ((1 << 40) - 3) << 19]
    with pytest.raises(BadRequest, match="an epoch that begins within"):
        far.rows(1 << 60, 0, 1)


PINNED = {
    STRATIFIED: (
        ["012001021001", "012001021001", "021001200102"],
        [[4, 5, 3], [132769, 132770, 79662], [159322, 265538, 106215]],
    ),
    SAMPLE: (
        ["120002210200", "112012022001", "012200002110"],
        [[3, 4, 5], [132769, 132770, 79661], [159322, 159323, 265538]],
    ),
    BATCH: (
        ["001122000011", "110022110000", "000011002211"],
        [[5, 2, 3], [132769, 132770, 132771], [106215, 159322, 159323]],
    ),
    BATCH_SAMPLE: (
        ["112200000022", "220022221100", "220022000022"],
        [[5, 2, 3], [79757, 132734, 132735], [265539, 106214, 106215]],
    ),
}
