"""Which dataset each sample of a stream comes from, when several are mixed by weights.

Everything rests on one order, ``even_rows``: source ``i`` has weight ``a_i / W``, integers, and its sample ``m`` is due
at ``(2m + 1) / (2 a_i)``; samples are taken as they fall due, ties to the lower source (Webster's, or Sainte-Laguë's,
apportionment, one seat after another). What has been given is never taken back, the remainder is carried on, the order
has period ``W``, and any place in it is reached in O(sources).

How even it is: when ``n`` samples have been given, there is a time ``T`` at which each source has ``T w_i`` rounded,
``T w_i - d_i`` with ``|d_i| <= 1/2``; the sum over sources is ``n``, so ``T - n`` is the sum of all ``d``. Then
``count_i - n w_i = w_i sum(d) - d_i``, at most ``(1 + w_i (k - 2)) / 2`` for ``k`` sources of positive weight: half a
sample for two sources, less than one for three, and for more while no weight reaches ``1 / (k - 2)``; always below k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from feedd.errors import BadRequest
from feedd.plan import rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = tuple[NDArray[np.int32], NDArray[np.int64]]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Weights = Sequence[float] | Mapping[int, Sequence[float]] | Callable[[int], Sequence[float]]
"""Of each source: for all epochs, from certain epochs on (from 0 at least), or a pure function of the epoch."""

MIX = 16  # the domain of this module, beside those of ``rng``: part of the order, never renumber

STRATIFIED = "stratified"
SAMPLE = "sample"
BATCH = "batch"
BATCH_SAMPLE = "batch-sample"
MODES = (STRATIFIED, SAMPLE, BATCH, BATCH_SAMPLE)

MAX_PARTS = 1 << 24
"""Weights are integers that sum to at most this: then times due, as float64, compare as the fractions they are."""
MAX_ROWS = 1 << 24
"""Samples asked for at once, for the same reason."""
_BLOCK = 65_536  # units (samples, or batches) shuffled together where sources are drawn: part of the order
_MAX_DENOMINATOR = 1_000_000
_KEPT = 4  # epochs, and blocks: one epoch drains, reading two blocks at most times, while the next one fills


@dataclass(frozen=True, slots=True)
class MixOptions:
    """How sources are mixed, and when a mixed epoch ends.

    Attributes:
        mode: ``stratified``: every span of the stream holds each source's share. ``sample``: the source of each
            sample is drawn. ``batch``: whole batches of one source, as even as ``stratified``. ``batch-sample``:
            whole batches of one source, drawn.
        batch_size: samples of a batch, for the two modes that go by batches; else 0.
        source_samples: what each source holds; None: not known.
        samples_per_epoch: where a mixed epoch ends, whole batches where it goes by batches. None: where the first
            source would give more than ``source_samples`` (in whole batches); without these there is but one epoch.
    """

    seed: int
    mode: str = STRATIFIED
    batch_size: int = 0
    source_samples: tuple[int, ...] | None = None
    samples_per_epoch: int | None = None


class Mixture:
    """The sources of a stream's samples. Synchronous, no I/O; remembers only what it can compute again.

    Positions in a source go on from one mixed epoch to the next, 0, 1, 2, ... without a gap: a source that runs out
    begins its own next epoch (``own_epochs``).

    The drawn modes are draws without replacement, not independent ones: the even order is cut into blocks of 65,536
    (samples, or batches), the last of an epoch as short as it must be, and each block is shuffled with a key of
    (seed, epoch, block). Each block has its exact quota, so what came before it is known in O(sources); inside,
    counts stray from their shares with a standard deviation of at most 64. A source depends on nothing but (seed,
    epoch, place), the weights and, in the last block, on where the epoch ends.
    """

    def __init__(self, weights: Weights, options: MixOptions) -> None:
        """Plan a mixture.

        Args:
            weights: of each source, at least 0, in any scale; see ``to_parts`` for what becomes of them.
            options: how they are mixed.

        Raises:
            BadRequest: weights or options that cannot be served.
        """
        self._weights = weights
        self._options = options
        self._unit = options.batch_size if options.mode in {BATCH, BATCH_SAMPLE} else 1
        self._drawn = options.mode in {SAMPLE, BATCH_SAMPLE}
        self._same = not callable(weights) and not isinstance(weights, Mapping)
        self._plans: dict[int, tuple[NDArray[np.int64], int | None]] = {}  # of an epoch: weights, and units in all
        self._before: dict[int, NDArray[np.int64]] = {}  # units of each source before an epoch
        self._blocks: dict[tuple[int, int], Rows] = {}
        self._check()
        self.source_count = len(_weights_of(weights, 0))
        if options.source_samples is not None and len(options.source_samples) != self.source_count:
            raise _bad(f"sizes of {self.source_count} sources", len(options.source_samples))
        self._plan(0)

    def epoch_samples(self, epoch: int) -> int | None:
        """Return the samples of a mixed epoch; None: it has no end.

        Raises:
            BadRequest: no such epoch, or weights that cannot be served, or a source too small for its first batch.
        """
        units = self._plan(epoch)[1]
        return None if units is None else units * self._unit

    def starts(self, epoch: int) -> NDArray[np.int64]:
        """Return each source's first position in a mixed epoch, int64[sources].

        O(sources) for constant weights; else so much for each epoch in between, once.

        Raises:
            BadRequest: see ``epoch_samples``.
        """
        return self._units_before(epoch) * self._unit

    def rows(self, epoch: int, first_sample: int, count: int) -> Rows:
        """Return (source int32, position in the source int64) of ``count`` samples, fewer where the epoch ends.

        O(count log count) wherever ``first_sample`` is; where sources are drawn, a block of them at least.

        Raises:
            BadRequest: see ``epoch_samples``; or a span that starts below 0 or is over ``MAX_ROWS``.
        """
        if first_sample < 0 or not 0 <= count <= MAX_ROWS:
            raise _bad(f"0 to {MAX_ROWS} samples from sample 0 or later", f"{count} from {first_sample}")
        before, end = self._units_before(epoch), self.epoch_samples(epoch)
        last = first_sample + count if end is None else min(first_sample + count, end)
        if last <= first_sample:
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        low, high = first_sample // self._unit, -(-last // self._unit)
        if self._drawn:
            source, unit = self._drawn_rows(epoch, low, high)
        else:
            source, unit = even_rows(self._plan(epoch)[0], low, high - low)
        position = (unit + before[source]) * self._unit
        if self._unit > 1:
            within = np.arange(low * self._unit, high * self._unit, dtype=np.int64) % self._unit
            source, position = np.repeat(source, self._unit), np.repeat(position, self._unit) + within
        span = slice(first_sample - low * self._unit, last - low * self._unit)
        return source[span], position[span]

    def own_epochs(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (the source's own epoch, sample in it), int64 each, for what ``rows`` gave.

        Raises:
            BadRequest: what sources hold is not known.
        """
        if self._options.source_samples is None:
            raise _bad("sizes of sources", None)
        held = np.maximum(np.array(self._options.source_samples, dtype=np.int64), 1)  # an empty one gives nothing
        epoch, sample = np.divmod(rows[1], held[rows[0]])
        return epoch, sample

    def _check(self) -> None:
        options = self._options
        if options.mode not in MODES:
            raise _bad(f"a mode of mixing, one of {', '.join(MODES)}", repr(options.mode))
        if self._unit < 1:
            raise _bad(f"a batch size of at least 1 to mix by {options.mode!r}", options.batch_size)
        per_epoch = options.samples_per_epoch
        if per_epoch is not None and (per_epoch < 1 or per_epoch % self._unit):
            raise _bad(f"samples_per_epoch to be a positive multiple of {self._unit}", per_epoch)
        if options.source_samples is not None and min(options.source_samples, default=0) < 0:
            raise _bad("sizes of sources of at least 0", options.source_samples)

    def _plan(self, epoch: int) -> tuple[NDArray[np.int64], int | None]:
        """Return the weights of an epoch, as integers, and how many samples or batches it has; None: no end."""
        if epoch < 0:
            raise _bad("an epoch of at least 0", epoch)
        epoch = 0 if self._same else epoch
        if epoch not in self._plans:
            parts = to_parts(_weights_of(self._weights, epoch))
            if parts.shape[0] != self.source_count:
                raise _bad(f"weights of {self.source_count} sources in epoch {epoch}", int(parts.shape[0]))
            self._check_sizes(parts)
            _keep(self._plans, epoch, (parts, self._units(parts)))
        return self._plans[epoch]

    def _check_sizes(self, parts: NDArray[np.int64]) -> None:
        """Refuse to draw on what holds nothing, or, where it ends an epoch, not a batch."""
        options = self._options
        if options.source_samples is None:
            return
        least = self._unit if options.samples_per_epoch is None else 1
        for source, (part, held) in enumerate(zip(parts.tolist(), options.source_samples, strict=False)):
            if part and held < least:
                raise _bad(f"at least {least} samples in source {source}, which has a weight", held)

    def _units(self, parts: NDArray[np.int64]) -> int | None:
        options = self._options
        if options.samples_per_epoch is not None:
            return options.samples_per_epoch // self._unit
        if options.source_samples is None:
            return None
        return min(
            even_place(parts, source, held // self._unit)
            for source, held in enumerate(options.source_samples)
            if parts[source]
        )

    def _units_before(self, epoch: int) -> NDArray[np.int64]:
        """Return what the epochs before have taken of each source, in samples or batches."""
        self._plan(epoch)  # or there is no such epoch
        if self._same and epoch > 0:
            return self._units_in(0) * epoch
        at = max((known for known in self._before if known <= epoch), default=0)
        before = self._before.get(at, np.zeros(self.source_count, dtype=np.int64))
        while at < epoch:
            at, before = at + 1, before + self._units_in(at)
        if epoch not in self._before:
            _keep(self._before, epoch, before)
        return before

    def _units_in(self, epoch: int) -> NDArray[np.int64]:
        parts, units = self._plan(epoch)
        if units is None:
            raise _bad("an end of mixed epochs: samples_per_epoch, or sizes of sources", None)
        return even_counts(parts, units)

    def _drawn_rows(self, epoch: int, low: int, high: int) -> Rows:
        found = []
        for block in range(low // _BLOCK, -(-high // _BLOCK)):
            source, unit = self._block(epoch, block)
            span = slice(max(low - block * _BLOCK, 0), high - block * _BLOCK)
            found.append((source[span], unit[span]))
        return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])

    def _block(self, epoch: int, block: int) -> Rows:
        known = self._blocks.get((epoch, block))
        if known is None:
            parts, end = self._plan(epoch)
            size = _BLOCK if end is None else min(_BLOCK, end - block * _BLOCK)
            source, unit = even_rows(parts, block * _BLOCK, size)
            key = rng.derive(MIX, self._options.seed, epoch, block)
            drawn = source[rng.permutation(size, key)]
            in_turn = np.empty_like(unit)
            in_turn[np.argsort(drawn, kind="stable")] = unit[np.argsort(source, kind="stable")]
            known = (drawn, in_turn)
            _keep(self._blocks, (epoch, block), known)
        return known


def to_parts(weights: Sequence[float]) -> NDArray[np.int64]:
    """Return integers in the ratio of ``weights``, int64[sources], that sum to at most ``MAX_PARTS``.

    Exact where that can be: a weight is the simplest fraction that reads as the same float (0.7 is 7/10). Otherwise
    they sum to ``MAX_PARTS``, by largest remainder: each is wrong by less than one part in 16,777,216 of the whole.

    Raises:
        BadRequest: no weights, or negative or infinite ones, or all 0; or one too small beside the others.
    """
    weights = [float(weight) for weight in weights]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise _bad("weights of at least 0, one of them positive", weights)
    exact = [_fraction(weight) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in exact))
    whole = [int(fraction * scale) for fraction in exact]
    common = math.gcd(*whole)
    whole = [number // common for number in whole]
    total = sum(whole)
    if total > MAX_PARTS:
        divided = [divmod(number * MAX_PARTS, total) for number in whole]
        by_remainder = sorted(range(len(whole)), key=lambda source: (-divided[source][1], source))
        whole = [quotient for quotient, _ in divided]
        for source in by_remainder[: MAX_PARTS - sum(whole)]:
            whole[source] += 1
    for source, (part, weight) in enumerate(zip(whole, weights, strict=True)):
        if weight and not part:
            raise _bad(f"weights of 0, or of about 1/{MAX_PARTS} of their sum at least", f"{weight} of source {source}")
    return np.array(whole, dtype=np.int64)


def even_rows(parts: NDArray[np.int64], first: int, count: int) -> Rows:
    """Return (source int32, position in the source int64) of places ``[first, first + count)`` of the even order."""
    total = int(parts.sum())
    periods, first = divmod(first, total)
    lows, highs = _due(parts, 2 * first), _due(parts, 2 * (first + count), more=True)
    sizes = highs - lows
    source = np.repeat(np.arange(parts.shape[0], dtype=np.int32), sizes)
    position = np.arange(source.shape[0], dtype=np.int64) + np.repeat(lows - (np.cumsum(sizes) - sizes), sizes)
    order = np.argsort((2 * position + 1) / (2 * parts[source]), kind="stable")
    skipped = first - int(lows.sum())
    order = order[skipped : skipped + count]
    source = source[order]
    return source, position[order] + periods * parts[source]


def even_counts(parts: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """Return how many of the first ``first`` places of the even order each source has, int64[sources]."""
    total = int(parts.sum())
    periods, first = divmod(first, total)
    lows = _due(parts, 2 * first)
    given = int(lows.sum())
    source, _ = even_rows(parts, given, first - given)
    return lows + np.bincount(source, minlength=parts.shape[0]) + periods * parts


def even_place(parts: NDArray[np.int64], source: int, position: int) -> int:
    """Return the place in the even order of one source's sample."""
    own, due = int(parts[source]), 2 * position + 1
    place = 0
    for other, part in enumerate(parts.tolist()):
        odd = due * part  # of the other are before it: 2m + 1 < odd / own, or equal from a lower source
        place += (odd + own - (0 if other < source else 1)) // (2 * own)
    return place


def _due(parts: NDArray[np.int64], halves: int, *, more: bool = False) -> NDArray[np.int64]:
    """Count what is due before a time at which all have at most ``halves / 2``, or, with ``more``, at least that."""
    total, positive = int(parts.sum()), int(np.count_nonzero(parts))
    halves = halves + positive if more else max(halves - positive, 0)
    return (halves * parts + total - 1) // (2 * total)


def _keep(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Remember a value, and forget the oldest ones."""
    known[key] = value
    while len(known) > _KEPT:
        del known[next(iter(known))]


def _fraction(weight: float) -> Fraction:
    simple = Fraction(weight).limit_denominator(_MAX_DENOMINATOR)
    return simple if float(simple) == weight else Fraction(weight)


def _weights_of(weights: Weights, epoch: int) -> Sequence[float]:
    if callable(weights):
        return weights(epoch)
    if not isinstance(weights, Mapping):
        return weights
    since = [start for start in weights if start <= epoch]
    if not since:
        raise _bad("weights from epoch 0 on", sorted(weights))
    return weights[max(since)]


def _bad(expected: str, got: object) -> BadRequest:
    return BadRequest(
        f"expected {expected}, got {got}", hint="correct the weights or options of the mixture", stage="plan"
    )
