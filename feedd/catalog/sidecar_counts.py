"""Sample counts from sidecars: feedd's own index, and files that other tools write beside the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from feedd.dataset.index_file import INDEX_BYTES_MAX, is_index, rows_of
from feedd.dataset.packs import pack_counts
from feedd.dataset.sidecars import (
    CLAIMS_BYTES_MAX,
    ForeignCounts,
    Surroundings,
    Unused,
    is_foreign_sidecar,
    tells_bytes,
)
from feedd.errors import FeeddError
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.notices import SIDECARS_EVENT, Amount, NoticeKind, summed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.sources import Sources
    from feedd.catalog.url_listing import Resolved
    from feedd.values import ObjectRef

_CLAIMS_MAX = 1000  # files; more such files are most likely something else
_AT_ONCE = 8
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class SidecarCounts:
    """Facts from sidecars, by the index of the shard.

    Attributes:
        exact: counts of this very version of the object, from feedd's own index; for packs, from the listing.
        claimed: counts by other tools, for shards without an exact count; these may turn out wrong.
        by: URLs of the files that the counts come from.
        formats: formats of shards, if a file names them.
        left_out: unusable files, unused counts of other tools, and tokens that are in no window.
    """

    exact: dict[int, int]
    claimed: dict[int, int]
    by: tuple[str, ...]
    formats: dict[int, str] = field(default_factory=dict)
    left_out: Mapping[NoticeKind, Amount] = field(default_factory=dict)


async def read_sidecars(sources: Sources, resolved: Resolved, *, claims: bool = True) -> SidecarCounts:
    """Read the sidecars; a file that cannot be used is skipped and logged.

    Args:
        sources: reads the files.
        resolved: the data, and the files beside it.
        claims: whether to use the counts of other tools.
    """
    indexes = [ref for ref in resolved.sidecar_refs if is_index(ref.key)]
    others = [ref for ref in resolved.sidecar_refs if is_foreign_sidecar(ref.key)]
    if not indexes and not others and not resolved.packs:
        return SidecarCounts({}, {}, ())
    around = await CPU.run(Surroundings, resolved.refs if indexes or others else ())
    bad = _BadFiles()
    try:
        counted = await _own(sources, around, indexes, bad)
        believed = await _others(sources, around, others, bad)
    finally:
        await CPU.run(around.clear)
    told = await CPU.run(_weigh, resolved, counted, believed)
    told = replace(told, left_out=summed([{NoticeKind.UNUSED_SIDECARS: bad.amount}, told.left_out]))
    if not claims:
        told = replace(told, claimed={}, by=tuple(ref.url for ref in counted))
    _log.info("sample counts known", shards=len(resolved.refs), known=len(told.exact), claimed=len(told.claimed))
    return told


class _BadFiles:
    """Sidecars that cannot be used; logs and counts them."""

    def __init__(self) -> None:
        self.amount = Amount()

    def add(self, ref: ObjectRef, reason: str, count: int = 1) -> None:
        """Skip a file, or the first of several."""
        _log.warning(SIDECARS_EVENT, object=ref.url, reason=reason, files=count)
        self.amount = self.amount.plus(Amount(count, 0, (f"{ref.key}: {reason}",)))


class _Counted(NamedTuple):
    """Counts from one index of feedd, by the index of the shard."""

    counts: dict[int, int]
    unused: Amount


class _Believed(NamedTuple):
    """Accepted counts from one file of another tool, by the index of the shard.

    Attributes:
        problem: why no count of the file is accepted; empty: some are.
    """

    counts: dict[int, int]
    formats: dict[int, str]
    unused: Amount = Amount()
    problem: str = ""


def _weigh(resolved: Resolved, counted: dict[ObjectRef, _Counted], others: dict[ObjectRef, _Believed]) -> SidecarCounts:
    unused = Unused()
    exact: dict[int, int] = {}
    for ref, own in counted.items():
        _report_others(resolved.refs, exact, own.counts, ref, unused)
        exact |= own.counts
    exact |= pack_counts(resolved.refs, resolved.packs)
    by = [ref.url for ref in counted]
    claimed: dict[int, int] = {}
    formats: dict[int, str] = {}
    # files that know the size of the counted objects come first
    for ref in sorted(others, key=lambda ref: not tells_bytes(ref.key)):
        one = others[ref]
        formats = one.formats | formats
        if one.counts:
            by.append(ref.url)
        _report_others(resolved.refs, {**claimed, **exact}, one.counts, ref, unused)
        claimed = one.counts | claimed
    claimed = {shard: count for shard, count in claimed.items() if shard not in exact}
    amounts = [*(own.unused for own in counted.values()), *(one.unused for one in others.values()), unused.amount]
    found = summed({NoticeKind.UNUSED_COUNTS: amount} for amount in amounts)
    return SidecarCounts(exact, claimed, tuple(by), formats, found)


def _report_others(
    refs: Sequence[ObjectRef], known: Mapping[int, int], counts: Mapping[int, int], file: ObjectRef, unused: Unused
) -> None:
    """Report counts of a file that differ from known counts of the same shards."""
    for shard, count in counts.items():
        if known.get(shard, count) != count:
            unused.add(refs[shard].key, "counted as {} samples, in {} as {}", known[shard], file.key, count)


async def _own(
    sources: Sources, around: Surroundings, refs: Sequence[ObjectRef], bad: _BadFiles
) -> dict[ObjectRef, _Counted]:
    found: dict[ObjectRef, _Counted] = {}
    for ref in refs:
        try:
            _check_size(ref, INDEX_BYTES_MAX)
            found[ref] = await sources.texts.parse(ref, partial(_counted, around, ref))
        except (FeeddError, ValueError) as error:
            bad.add(ref, str(error))
    return found


async def _others(
    sources: Sources, around: Surroundings, refs: Sequence[ObjectRef], bad: _BadFiles
) -> dict[ObjectRef, _Believed]:
    if len(refs) > _CLAIMS_MAX:
        bad.add(refs[0], f"expected at most {_CLAIMS_MAX} such files, got {len(refs)}", len(refs))
        return {}

    async def one(ref: ObjectRef) -> _Believed:
        try:
            _check_size(ref, CLAIMS_BYTES_MAX)
            return await sources.texts.parse(ref, partial(_believed, around, ref))
        except (FeeddError, ValueError) as error:
            return _Believed({}, {}, problem=str(error))

    found: list[_Believed] = []
    for at in range(0, len(refs), _AT_ONCE):
        found += await run_all(one(ref) for ref in refs[at : at + _AT_ONCE])
    for ref, believed in zip(refs, found, strict=True):
        if believed.problem:
            bad.add(ref, believed.problem)
    return dict(zip(refs, found, strict=True))


def _counted(around: Surroundings, ref: ObjectRef, data: memoryview) -> _Counted:
    unused = Unused()
    return _Counted(around.counted(ref, rows_of(data), unused), unused.amount)


def _believed(around: Surroundings, ref: ObjectRef, data: memoryview) -> _Believed:
    claims, unused = ForeignCounts(ref.key, data), Unused()
    counts: dict[int, int] = {}
    problem = ""
    try:
        counts = around.believed(ref, claims, unused)
    except ValueError as error:
        unused, problem = Unused(), str(error)
    try:
        return _Believed(counts, around.formats(ref, claims, counts.keys()), unused.amount, problem)
    except ValueError as error:  # mostly the same error as before: the file is of another kind
        return _Believed({}, {}, problem=problem or str(error))


def _check_size(ref: ObjectRef, bytes_max: int) -> None:
    if ref.size_bytes > bytes_max:
        raise ValueError(f"expected at most {bytes_max} bytes, got {ref.size_bytes}")
