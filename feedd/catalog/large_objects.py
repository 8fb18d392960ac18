"""Large objects whose samples lie at regular distances become spans: shards of their own (``dataset.object_spans``).

These are files of tokens that a recipe splits into windows, and ``.npy`` files of rows. Their samples follow from the
listing and from their first bytes, which are read and checked when the data is listed. Other objects stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import structlog

from feedd.catalog.object_heads import first_bytes
from feedd.dataset.listing import Listing
from feedd.dataset.object_spans import SampleGrid, Span, split
from feedd.dataset.pack_layout import is_pack
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.formats import npy_header, strided, tokens
from feedd.recipe.params import SAMPLE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.sidecar_counts import SidecarCounts
    from feedd.catalog.sources import Sources
    from feedd.values import ObjectRef

    Spans = Sequence[tuple[ObjectRef, Span]]

_T = TypeVar("_T")
_AT_ONCE: Final = 32
_NPY: Final = "npy"
_LEAST: Final = 2  # spans of an object
_log = structlog.get_logger("feedd.sessions")


async def spans_of(sources: Sources, listing: Listing, span_bytes: int) -> dict[int, Spans]:
    """Return the spans of each object that has several, by index.

    Args:
        sources: reads the first bytes of large objects.
        listing: the objects, with their formats.
        span_bytes: least size of a span; 0: all objects stay whole.

    Raises:
        BadShard: a large object contradicts its format or its recipe.
        ObjectChanged, NotFound, PermissionDenied, StoreUnavailable: the store's answer about a large object.
    """
    numbers = _large(listing, span_bytes)
    found: dict[int, Spans] = {}

    async def one(number: int, format_name: str) -> None:
        ref = listing.refs[number]
        grid = await _grid(sources, ref, format_name)
        spans = () if grid is None else await CPU.run(split, ref, grid, span_bytes)
        if spans:
            found[number] = spans

    items = list(numbers.items())
    for at in range(0, len(items), _AT_ONCE):
        await run_all(one(*item) for item in items[at : at + _AT_ONCE])
    return dict(sorted(found.items()))


async def with_spans(
    sources: Sources, listing: Listing, told: SidecarCounts, span_bytes: int
) -> tuple[Listing, SidecarCounts]:
    """Return the listing and its counts with spans in the places of large objects.

    Args:
        sources: reads the first bytes of large objects.
        listing: the objects, with their formats.
        told: counts of the objects.
        span_bytes: see ``spans_of``.

    Raises:
        As ``spans_of``.
    """
    spans = await spans_of(sources, listing, span_bytes)
    if not spans:
        return listing, told
    _log.info("large objects are read in spans", objects=len(spans), spans=sum(map(len, spans.values())))
    return await CPU.run(_spread, listing, told, spans)


def may_have_spans(listing: Listing, span_bytes: int) -> bool:
    """Whether an object is large enough for spans, and has a format that allows them; takes long if there are many."""
    return bool(_large(listing, span_bytes))


def _large(listing: Listing, span_bytes: int) -> dict[int, str]:
    """Return the formats of the objects that may have several spans, by index; microseconds for each large object."""
    found: dict[int, str] = {}
    if not span_bytes:
        return found
    for number in np.flatnonzero(listing.sizes >= _LEAST * span_bytes).tolist():
        ref = listing.refs[number]
        name = listing.format_of(number) or (_NPY if ref.key.lower().endswith(".npy") else "")
        kind, _, params = name.partition(":")
        is_cut = name == _NPY or (params and kind in {tokens.RAW, tokens.LLMC, tokens.NPY})
        if is_cut and ref.conversion is None and not is_pack(ref):
            found[number] = name
    return found


async def _grid(sources: Sources, ref: ObjectRef, format_name: str) -> SampleGrid | None:
    """Return how the samples of an object lie in it; None: they are too large for spans."""
    if format_name == _NPY:
        head = memoryview(await first_bytes(sources, ref, npy_header.HEAD_BYTES_MAX))
        array, rows = strided.npy_rows(head, ref.size_bytes, ref.url)
        if array.row_bytes > SAMPLE_BYTES_MAX:
            return None  # reading the shard reports the error
        return SampleGrid(array.at, array.row_bytes, array.row_bytes, rows, array.name, array.encoding)
    head = memoryview(await first_bytes(sources, ref, tokens.HEAD_BYTES_MAX))
    at = tokens.tokens_at(head, ref.size_bytes, ref.url, format_name)
    kind, _, params = format_name.partition(":")
    windows = tokens.windows_in(params)
    count = tokens.window_count(kind, ref.size_bytes, windows)
    step_bytes, size_bytes = windows.stride * windows.item_bytes, windows.count * windows.item_bytes
    return SampleGrid(at, step_bytes, size_bytes, count, tokens.FIELD, f"{windows.dtype}[]")


@dataclass(frozen=True, slots=True)
class _Renumbering:
    """New indices of objects: of each, the first index, and the number of shards in its place."""

    firsts: Sequence[int]
    counts: Sequence[int]

    def spread(self, facts: Mapping[int, _T]) -> dict[int, _T]:
        """Return facts by the new indices; every span has the facts of its object."""
        return {
            number: fact
            for old, fact in facts.items()
            for number in range(self.firsts[old], self.firsts[old] + self.counts[old])
        }


def _spread(listing: Listing, told: SidecarCounts, spans: Mapping[int, Spans]) -> tuple[Listing, SidecarCounts]:
    """Put spans in the places of their objects. The spans' counts are exact, and replace others."""
    refs: list[ObjectRef] = []
    found: dict[int, Span] = {}
    firsts: list[int] = []
    for number, ref in enumerate(listing.refs):
        firsts.append(len(refs))
        for shard, span in spans.get(number, ()):
            found[len(refs)] = span
            refs.append(shard)
        if number not in spans:
            refs.append(ref)
    renumbering = _Renumbering(firsts, [len(spans.get(number, (None,))) for number in range(len(firsts))])
    sources = tuple(firsts[first] if first < len(firsts) else len(refs) for first in listing.firsts)
    cut_up = Listing.of(refs, listing.listed_s, sources)
    cut_up.packs, cut_up.spans = listing.packs, found
    cut_up.named, cut_up.idx_bytes = renumbering.spread(listing.named), renumbering.spread(listing.idx_bytes)
    counts = {number: span.count for number, span in found.items()}
    claimed = {number: count for number, count in renumbering.spread(told.claimed).items() if number not in found}
    exact = {**renumbering.spread(told.exact), **counts}
    return cut_up, replace(told, exact=exact, claimed=claimed, formats=renumbering.spread(told.formats))
