"""Lists a dataset as the daemon reads it: formats, conversions, spans of large files, and what sidecars tell."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from feedd.access import EVERYTHING
from feedd.catalog.braces import Allowance
from feedd.catalog.large_objects import may_have_spans, with_spans
from feedd.catalog.megatron_index import check_types, read_documents
from feedd.catalog.object_heads import with_heads
from feedd.catalog.object_kinds import PRIMARY, kind_of, needs_bytes
from feedd.catalog.record_idx import idx_sizes
from feedd.catalog.sidecar_counts import read_sidecars
from feedd.catalog.token_windows import token_files
from feedd.catalog.url_listing import Resolved
from feedd.catalog.wanted_columns import counting
from feedd.dataset.listing import Listing
from feedd.dataset.object_names import split_name
from feedd.dataset.packs import Packs
from feedd.dataset.passed_over import PassedOver, amount_of
from feedd.errors import BadShard
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind, summed
from feedd.tables.converter import formed
from feedd.tables.registry import check_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.access import Access
    from feedd.catalog.learned_counts import Learned
    from feedd.catalog.sidecar_counts import SidecarCounts
    from feedd.catalog.sources import Sources
    from feedd.catalog.token_windows import Cuts, TokenFiles
    from feedd.protocols import Clock


class DatasetLister:
    """Lists datasets; it keeps nothing.

    Args:
        sources: lists and reads.
        clock: tells the time of a listing.
        learned: counts that earlier reads told.
    """

    def __init__(self, sources: Sources, clock: Clock, learned: Learned) -> None:
        self._sources = sources
        self._clock = clock
        self._learned = learned

    async def list(
        self,
        sources: Sequence[Sequence[str]],
        cuts: Cuts = (),
        access: Access = EVERYTHING,
        span_bytes: int = 0,
        backs: tuple[int, ...] = (),
    ) -> Listing:
        """List a dataset.

        Args:
            sources: URLs of each source; the sources are concatenated.
            cuts: how each source's files of tokens are split; empty: there are no such files.
            access: what the caller may read.
            span_bytes: least size of the spans of large objects; 0: all objects are read whole.
            backs: of frozen manifests, how many versions before the newest to take, by source; empty: the newest.

        Raises:
            What ``Sources.resolve_all`` and ``with_spans`` raise.
            ObjectChanged: two counts of a shard differ.
            BadShard: shards have no bytes, though their format needs some.
        """
        resolve = partial(self._sources.resolve_all, access=access, allowance=Allowance())
        cut = [one is not None for one in cuts] or [False] * len(sources)  # a .npy file of tokens is a shard
        each = zip(sources, cut, backs or (0,) * len(sources), strict=True)
        resolved = await run_all(resolve(urls, shards=shards, back=back) for urls, shards, back in each)
        return await self._frozen(resolved, cuts, span_bytes) or await self._listed(resolved, cuts, span_bytes)

    async def counted(self, urls: tuple[str, ...]) -> Listing:
        """Return a listing that knows only the counts of feedd's own index beside the data."""
        found = await self._sources.resolve_all(urls, EVERYTHING)
        refs = await with_heads(self._sources, found.refs, found.named)
        resolved = replace(found, refs=await CPU.run(counting, refs, found.named))
        listing = await CPU.run(Listing.of, resolved.refs, self._clock.monotonic_s())
        listing.packs, listing.named = resolved.packs, await CPU.run(_known_formats, resolved)
        listing.idx_bytes = await CPU.run(idx_sizes, resolved.refs, resolved.sidecar_refs)
        told = await self._sidecar_counts(resolved, listing, claims=False)
        files = told.left_out.get(NoticeKind.UNUSED_SIDECARS, Amount())  # unused counts do not matter: counting follows
        listing.passed_over = resolved.passed_over.with_reasons({NoticeKind.UNUSED_SIDECARS: files})
        await CPU.run(listing.add_counts, told.exact, told.claimed, told.by)
        listing.formats = told.formats
        return listing

    async def _frozen(self, resolved: Sequence[Resolved], cuts: Cuts, span_bytes: int) -> Listing | None:
        """Return the listing of one frozen manifest, or None if the objects need a look of their own."""
        only = resolved[0].only if len(resolved) == 1 and not any(cuts) else None
        if only is None:
            return None
        listing = await CPU.run(only.listing, self._clock.monotonic_s())
        if listing is None or await CPU.run(may_have_spans, listing, span_bytes):
            return None
        await CPU.run(judge_empty, listing)
        return listing

    async def _listed(self, resolved: Sequence[Resolved], cuts: Cuts, span_bytes: int) -> Listing:
        firsts = tuple(itertools.accumulate((len(one.refs) for one in resolved[:-1]), initial=0))
        whole = await CPU.run(_joined, resolved, firsts)
        refs = await with_heads(self._sources, whole.refs, whole.named, firsts, cuts)
        whole = replace(whole, refs=refs)
        listing = await CPU.run(Listing.of, whole.refs, self._clock.monotonic_s(), firsts)
        listing.packs, listing.named = whole.packs, await CPU.run(_known_formats, whole)
        listing.idx_bytes = await CPU.run(idx_sizes, whole.refs, whole.sidecar_refs)
        told = await self._sidecar_counts(whole, listing)
        told = await CPU.run(_with_frozen, told, whole)
        if any(cuts):
            told = await self._with_token_windows(whole, firsts, cuts, told)
        listing.formats = told.formats
        listing, told = await with_spans(self._sources, listing, told, span_bytes)
        listing.formats, listing.passed_over = told.formats, whole.passed_over.with_reasons(told.left_out)
        await CPU.run(judge_empty, listing)
        listing.frozen = whole.frozen
        listing.counts = await CPU.run(self._learned.known, listing.refs, listing.format_of)
        await CPU.run(listing.add_counts, told.exact, told.claimed, told.by)
        return listing

    async def _sidecar_counts(self, resolved: Resolved, listing: Listing, *, claims: bool = True) -> SidecarCounts:
        """Return the counts of sidecars; for documents, tell the listing their formats."""
        documents = await read_documents(self._sources, resolved)
        told = await read_sidecars(self._sources, resolved, claims=claims)
        if not documents.counts:
            return told
        listing.named = {**listing.named, **documents.readers}
        claimed = {shard: count for shard, count in told.claimed.items() if shard not in documents.counts}
        return replace(told, exact={**told.exact, **documents.counts}, claimed=claimed)

    async def _with_token_windows(
        self, whole: Resolved, firsts: tuple[int, ...], cuts: Cuts, told: SidecarCounts
    ) -> SidecarCounts:
        """Add the windows that recipes make from files of tokens; these are the files' only samples."""
        files, cut_told = await CPU.run(_with_cuts, whole, firsts, cuts, told)
        await check_types(self._sources, whole, files.dtypes)
        return cut_told


def judge_empty(listing: Listing) -> None:
    """Refuse shards without bytes whose format needs some, and add the notice about such objects in packs.

    The run would end at the first of these shards. Objects in packs are samples, which the run's policy judges.

    Raises:
        BadShard: shards are empty; all of them are counted, and the first are named.
    """
    lost = []
    for number in np.flatnonzero(listing.sizes == 0).tolist():
        ref = listing.refs[number]
        if needs_bytes(ref.key, listing.format_of(number).partition(":")[0]):
            lost.append(ref)
    if lost:
        message = f"expected shards with bytes, got empty ones: {amount_of(lost).text}"
        hint = "write them again if their upload broke off, or leave them out"
        raise BadShard(message, object=lost[0].url, hint=hint, stage="source")
    found: list[str] = []
    for pack in listing.packs:
        if type(pack) is Packs:  # a line of a manifest is never empty, and a missing object is reported
            keys = map(pack.members.key, np.flatnonzero(pack.members.sizes == 0).tolist())
            found += (key for key in keys if kind_of(*split_name(key)) == PRIMARY)
    amount = Amount(len(found), 0, tuple(found[:EXAMPLES_MAX]))
    listing.passed_over = listing.passed_over.with_reasons({NoticeKind.EMPTY_OBJECTS: amount})


def _joined(resolved: Sequence[Resolved], firsts: Sequence[int]) -> Resolved:
    """Return the shards of several sources, one after another, with the conversions that they need."""
    refs, named = resolved[0].refs, resolved[0].named
    if len(resolved) > 1:
        refs = tuple(ref for one in resolved for ref in one.refs)
        named = {
            first + at: name for first, one in zip(firsts, resolved, strict=True) for at, name in one.named.items()
        }
    return Resolved(
        formed(refs, named),
        tuple(dict.fromkeys(ref for one in resolved for ref in one.sidecar_refs)),
        tuple(pack for one in resolved for pack in one.packs),
        named,
        functools.reduce(PassedOver.plus, (one.passed_over for one in resolved)),
        {first + at: count for first, one in zip(firsts, resolved, strict=True) for at, count in one.counts.items()},
        {first + at: name for first, one in zip(firsts, resolved, strict=True) for at, name in one.formats.items()},
        tuple(ref for one in resolved for ref in one.frozen),
    )


def _with_frozen(told: SidecarCounts, whole: Resolved) -> SidecarCounts:
    """Add the counts and formats of frozen manifests."""
    if not whole.frozen:
        return told
    by = (*told.by, *(ref.url for ref in whole.frozen))
    return replace(told, exact={**whole.counts, **told.exact}, by=by, formats={**whole.formats, **told.formats})


def _with_cuts(
    whole: Resolved, firsts: tuple[int, ...], cuts: Cuts, told: SidecarCounts
) -> tuple[TokenFiles, SidecarCounts]:
    files = token_files(whole.refs, firsts, cuts, {**told.formats, **whole.named})
    claimed = {shard: count for shard, count in told.claimed.items() if shard not in files.counts}
    exact, formats = {**told.exact, **files.counts}, {**told.formats, **files.readers}
    left_out = summed([told.left_out, files.left_out])
    return files, replace(told, exact=exact, claimed=claimed, formats=formats, left_out=left_out)


def _known_formats(resolved: Resolved) -> Mapping[int, str]:
    """Return the formats that URLs name, by shard.

    Raises:
        Unsupported: no format or conversion has such a name.
    """
    for name in {name for name, _ in itertools.groupby(resolved.named.values())}:
        check_named(name)
    return resolved.named
