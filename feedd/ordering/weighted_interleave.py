"""The even order of several sources by their weights, the basis of every mixture.

Source ``i`` has weight ``a_i / W``, integers, and its sample ``m`` is due at ``(2m + 1) / (2 a_i)``. Samples are taken
in the order of their due times, ties to the lower source. This is Webster's, or Sainte-Laguë's, apportionment, one seat
after another. Nothing given is ever taken back, the remainder is carried on, the order has period ``W``, and any place
in it is reached in O(sources).

How even the order is: when ``n`` samples have been given, there is a time ``T`` at which each source has ``T w_i``
rounded. That is ``T w_i - d_i`` with ``|d_i| <= 1/2``. The sum over sources is ``n``, so ``T - n`` is the sum of all
``d``. Then ``count_i - n w_i = w_i sum(d) - d_i``, at most ``(1 + w_i (k - 2)) / 2`` for ``k`` sources of positive
weight.

That is half a sample for two sources, and less than one for three. It is less than one for more sources while no weight
reaches ``1 / (k - 2)``, and always below k.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = tuple[NDArray[np.int32], NDArray[np.int64]]

MAX_PARTS = 1 << 24
"""Weights are integers with at most this sum, so that due times in float64 compare exactly like the fractions."""
_MAX_DENOMINATOR = 1_000_000


def to_parts(weights: Sequence[float]) -> NDArray[np.int64]:
    """Return integers in the ratio of ``weights``, int64[sources], that sum to at most ``MAX_PARTS``.

    Exact if possible: a weight is the simplest fraction that reads as the same float (0.7 is 7/10). Otherwise the
    integers sum to ``MAX_PARTS``, by largest remainder, and each is wrong by less than 1 / 16,777,216 of the whole.

    Raises:
        BadRequest: there are no weights, a weight is negative or infinite, all are 0, or one is too small next to the
            others.
    """
    weights = [float(weight) for weight in weights]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise _bad_weights("weights of at least 0, one of them positive", weights)
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
            raise _bad_weights(
                f"weights of 0, or of about 1/{MAX_PARTS} of their sum at least", f"{weight} of source {source}"
            )
    return np.array(whole, dtype=np.int64)


def interleaved_rows(parts: NDArray[np.int64], first: int, count: int) -> Rows:
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


def interleaved_counts(parts: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """Return how many of the first ``first`` places of the even order each source has, int64[sources]."""
    total = int(parts.sum())
    periods, first = divmod(first, total)
    lows = _due(parts, 2 * first)
    given = int(lows.sum())
    source, _ = interleaved_rows(parts, given, first - given)
    return lows + np.bincount(source, minlength=parts.shape[0]) + periods * parts


def interleaved_position(parts: NDArray[np.int64], source: int, position: int) -> int:
    """Return the place in the even order of one source's sample."""
    own, due = int(parts[source]), 2 * position + 1
    place = 0
    for other, part in enumerate(parts.tolist()):
        odd = due * part  # the other source's earlier samples: 2m + 1 < odd / own, or equal from a lower source
        place += (odd + own - (0 if other < source else 1)) // (2 * own)
    return place


def _due(parts: NDArray[np.int64], halves: int, *, more: bool = False) -> NDArray[np.int64]:
    """Count samples due before a time at which all have at most ``halves / 2``, or, with ``more``, at least that."""
    total, positive = int(parts.sum()), int(np.count_nonzero(parts))
    halves = halves + positive if more else max(halves - positive, 0)
    return (halves * parts + total - 1) // (2 * total)


def _fraction(weight: float) -> Fraction:
    simple = Fraction(weight).limit_denominator(_MAX_DENOMINATOR)
    return simple if float(simple) == weight else Fraction(weight)


def _bad_weights(expected: str, got: object) -> BadRequest:
    return BadRequest(f"expected {expected}, got {got}", hint="correct the weights of the mixture", stage="plan")
