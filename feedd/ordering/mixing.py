"""Which dataset each sample of a stream comes from, when several are mixed by weights.

The order is that of ``ordering.weighted_interleave``.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRequest
from feedd.ordering import rng
from feedd.ordering.weighted_interleave import interleaved_counts, interleaved_position, interleaved_rows, to_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.ordering.weighted_interleave import Rows

Weights = Sequence[float] | Mapping[int, Sequence[float]]
"""Weights of the sources: for all epochs, or by the epoch from which they hold (epoch 0 included)."""

MIX = 16  # a domain in addition to those of ``rng``: part of the order, never renumber

STRATIFIED = "stratified"
SAMPLE = "sample"
BATCH = "batch"
BATCH_SAMPLE = "batch-sample"
MODES = (STRATIFIED, SAMPLE, BATCH, BATCH_SAMPLE)

MAX_ROWS = 1 << 24
"""Maximum samples per call. Up to this number, due times in float64 compare exactly like the fractions."""
_BLOCK = 65_536  # units (samples, or batches) shuffled together if sources are drawn: part of the order
_MAX_POSITION = 1 << 62
_BLOCKS_KEPT = 4  # an epoch that drains reads at most two blocks at a time, while the next epoch fills


@dataclass(frozen=True, slots=True)
class MixOptions:
    """How sources are mixed, and when a mixed epoch ends.

    Attributes:
        mode: ``stratified``: every span of the stream holds each source's share. ``sample``: the source of each sample
            is drawn. ``batch``: whole batches of one source, as even as ``stratified``. ``batch-sample``: whole batches
            of one source, drawn.
        batch_size: samples of a batch, for the two batch modes; else 0.
        source_samples: number of samples of each source; None: not known.
        samples_per_epoch: samples of a mixed epoch, in whole steps. None: the epoch ends with the last whole step
            before a source would give more than its ``source_samples`` (in whole batches). Without these there is only
            one epoch.
        step_samples: samples taken together; a mixed epoch is a multiple of them. 0: a batch, or a sample.
    """

    seed: int
    mode: str = STRATIFIED
    batch_size: int = 0
    source_samples: tuple[int, ...] | None = None
    samples_per_epoch: int | None = None
    step_samples: int = 0

    @property
    def unit(self) -> int:
        """Samples that come from one source together."""
        return self.batch_size if self.mode in {BATCH, BATCH_SAMPLE} else 1


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Epochs with the same weights.

    Attributes:
        since: the first of these epochs.
        parts: int64[sources], the weights.
        units: samples or batches of each epoch; None: the epoch has no end.
        given: units of each source in each epoch.
        before: units of each source in the epochs before ``since``.
    """

    since: int
    parts: NDArray[np.int64]
    units: int | None
    given: tuple[int, ...]
    before: tuple[int, ...]


class Mixture:
    """The sources of a stream's samples. Synchronous, no I/O; caches only values it can compute again.

    Positions in a source continue from one mixed epoch to the next, 0, 1, 2, ... without a gap. A source that runs out
    begins its own next epoch.

    The drawn modes draw without replacement, not independently. The even order is cut into blocks of 65,536 samples or
    batches (the last block of an epoch may be shorter). Each block is shuffled with a key of (seed, epoch, block). Each
    block has its exact quota, so the counts before it are known in O(sources). Inside a block, counts deviate from
    their shares with a standard deviation of at most 64. The source of a place depends only on (seed, epoch, place), on
    the weights and, in the last block, on the epoch's end.
    """

    def __init__(self, weights: Weights, options: MixOptions) -> None:
        """Plan a mixture.

        Args:
            weights: weight of each source, at least 0, in any scale; ``to_parts`` converts them.
            options: how the sources are mixed.

        Raises:
            BadRequest: weights or options that cannot be served in some epoch.
        """
        self._options = options
        self._unit = options.unit
        self._random = options.mode in {SAMPLE, BATCH_SAMPLE}
        self._blocks: dict[tuple[int, int], Rows] = {}
        self._check()
        by_epoch = dict(weights) if isinstance(weights, Mapping) else {0: weights}
        if 0 not in by_epoch:
            raise _bad("weights from epoch 0 on", sorted(by_epoch))
        self.source_count = len(by_epoch[0])
        if options.source_samples is not None and len(options.source_samples) != self.source_count:
            raise _bad(f"sizes of {self.source_count} sources", len(options.source_samples))
        self._spans = self._planned(by_epoch)

    def with_seed(self, seed: int) -> Mixture:
        """Return the same mixture with another seed."""
        other = copy.copy(self)
        vars(other).update(_options=replace(self._options, seed=seed), _blocks={})
        return other

    @property
    def unit(self) -> int:
        """Samples that come from one source together."""
        return self._unit

    @property
    def ratios(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The weights in use: from which epoch on, and each source's part."""
        return tuple((span.since, tuple(span.parts.tolist())) for span in self._spans)

    def parts(self, epoch: int) -> NDArray[np.int64]:
        """Return the weights of an epoch as integers, int64[sources].

        Raises:
            BadRequest: there is no such epoch.
        """
        return self._span(epoch).parts

    def epoch_samples(self, epoch: int) -> int | None:
        """Return the samples of a mixed epoch; None: the epoch has no end.

        Raises:
            BadRequest: there is no such epoch.
        """
        units = self._span(epoch).units
        return None if units is None else units * self._unit

    def starts(self, epoch: int) -> NDArray[np.int64]:
        """Return each source's first position in a mixed epoch, int64[sources]. O(sources).

        Raises:
            BadRequest: there is no such epoch.
        """
        return self._units_before(epoch) * self._unit

    def ends(self, epoch: int) -> NDArray[np.int64]:
        """Return each source's first position after a mixed epoch, int64[sources]; see ``starts``."""
        return self.starts(epoch) + np.array(self._span(epoch).given, dtype=np.int64) * self._unit

    def rows(self, epoch: int, first_sample: int, count: int) -> Rows:
        """Return (source int32, position in the source int64) of ``count`` samples, fewer at the epoch's end.

        O(count log count) for any ``first_sample``; if sources are drawn, at least one block.

        Raises:
            BadRequest: there is no such epoch, or the span starts below 0 or is over ``MAX_ROWS``.
        """
        if first_sample < 0 or not 0 <= count <= MAX_ROWS:
            raise _bad(f"0 to {MAX_ROWS} samples from sample 0 or later", f"{count} from {first_sample}")
        before, end = self._units_before(epoch), self.epoch_samples(epoch)
        last = first_sample + count if end is None else min(first_sample + count, end)
        if last <= first_sample:
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        low, high = first_sample // self._unit, -(-last // self._unit)
        if self._random:
            source, unit = self._random_rows(epoch, low, high)
        else:
            source, unit = interleaved_rows(self._span(epoch).parts, low, high - low)
        position = (unit + before[source]) * self._unit
        if self._unit > 1:
            within = np.arange(low * self._unit, high * self._unit, dtype=np.int64) % self._unit
            source, position = np.repeat(source, self._unit), np.repeat(position, self._unit) + within
        span = slice(first_sample - low * self._unit, last - low * self._unit)
        return source[span], position[span]

    def spread_samples(self, share: float) -> float:
        """Return how many samples later than in the even order a sample of a source with that share may come.

        Four standard deviations if sources are drawn, else none.
        """
        return min(4 * 64 / share, _BLOCK) * self._unit if self._random else 0.0

    def _check(self) -> None:
        options = self._options
        if options.mode not in MODES:
            raise _bad(f"a mode of mixing, one of {', '.join(MODES)}", repr(options.mode))
        if self._unit < 1:
            raise _bad(f"a batch size of at least 1 to mix by {options.mode!r}", options.batch_size)
        if options.step_samples < 0 or options.step_samples % self._unit:
            raise _bad(f"steps of whole batches of {self._unit}", options.step_samples)
        per_epoch, step = options.samples_per_epoch, options.step_samples or self._unit
        if per_epoch is not None and (not 1 <= per_epoch <= _MAX_POSITION or per_epoch % step):
            raise _bad(f"samples_per_epoch to be a positive multiple of {step}", per_epoch)
        if options.source_samples is not None and min(options.source_samples, default=0) < 0:
            raise _bad("sizes of sources of at least 0", options.source_samples)

    def _planned(self, by_epoch: Mapping[int, Sequence[float]]) -> list[_Span]:
        """Plan the epochs of each set of weights; epochs after an endless epoch never come."""
        spans: list[_Span] = []
        for since, weights in sorted(by_epoch.items()):
            parts = to_parts(weights)
            if parts.shape[0] != self.source_count:
                raise _bad(f"weights of {self.source_count} sources in epoch {since}", int(parts.shape[0]))
            self._check_sizes(parts)
            before = (0,) * self.source_count
            if spans:
                last = spans[-1]
                if last.units is None:
                    break
                before = tuple(
                    old + new * (since - last.since) for old, new in zip(last.before, last.given, strict=True)
                )
            units = self._units(parts)
            given = () if units is None else tuple(interleaved_counts(parts, units).tolist())
            spans.append(_Span(since, parts, units, given, before))
        return spans

    def _span(self, epoch: int) -> _Span:
        if epoch < 0:
            raise _bad("an epoch of at least 0", epoch)
        return self._spans[bisect_right(self._spans, epoch, key=lambda span: span.since) - 1]

    def _check_sizes(self, parts: NDArray[np.int64]) -> None:
        """Refuse to draw from an empty source, or from a source smaller than a batch if it ends an epoch."""
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
        # The first missing sample or batch is the one due first among all sources' next ones.
        lacking = [
            (Fraction(2 * (held // self._unit) + 1, part), source)
            for source, (held, part) in enumerate(zip(options.source_samples, parts.tolist(), strict=True))
            if part
        ]
        first = min(lacking)[1]
        units = interleaved_position(parts, first, options.source_samples[first] // self._unit)
        step = max(options.step_samples // self._unit, 1)
        if units < step:
            raise _bad(
                f"samples for a step of {options.step_samples} before source {first} ends, which holds"
                f" {options.source_samples[first]}",
                units * self._unit,
            )
        return units - units % step

    def _units_before(self, epoch: int) -> NDArray[np.int64]:
        """Return what earlier epochs took from each source, in samples or batches."""
        span = self._span(epoch)
        epochs = epoch - span.since
        if epochs and span.units is None:
            raise _bad("an end of mixed epochs: samples_per_epoch, or sizes of sources", None)
        before = [old + new * epochs for old, new in zip(span.before, span.given or span.before, strict=True)]
        if (max(before) + (span.units or 0)) * self._unit > _MAX_POSITION:
            raise _bad(f"an epoch that begins within {_MAX_POSITION} samples", epoch)
        return np.array(before, dtype=np.int64)

    def _random_rows(self, epoch: int, low: int, high: int) -> Rows:
        found = []
        for block in range(low // _BLOCK, -(-high // _BLOCK)):
            source, unit = self._block(epoch, block)
            span = slice(max(low - block * _BLOCK, 0), high - block * _BLOCK)
            found.append((source[span], unit[span]))
        return np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])

    def _block(self, epoch: int, block: int) -> Rows:
        known = self._blocks.get((epoch, block))
        if known is None:
            span = self._span(epoch)
            size = _BLOCK if span.units is None else min(_BLOCK, span.units - block * _BLOCK)
            source, unit = interleaved_rows(span.parts, block * _BLOCK, size)
            key = rng.derive(MIX, self._options.seed, epoch, block)
            drawn = source[rng.permutation(size, key)]
            in_turn = np.empty_like(unit)
            in_turn[np.argsort(drawn, kind="stable")] = unit[np.argsort(source, kind="stable")]
            known = self._blocks[epoch, block] = (drawn, in_turn)
            while len(self._blocks) > _BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
        return known


def _bad(expected: str, got: object) -> BadRequest:
    return BadRequest(
        f"expected {expected}, got {got}", hint="correct the weights or options of the mixture", stage="plan"
    )
