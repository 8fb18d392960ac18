"""Sample counts that files beside the data tell: feedd's own index, and what other tools leave there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from feedd.errors import FeeddError
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.plan.beside import CLAIMS_BYTES_MAX, Claims, Surroundings, is_claim, tells_bytes
from feedd.plan.counts import INDEX_BYTES_MAX, is_index, rows_of
from feedd.plan.objects.packs import pack_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.source.sources import Resolved, Sources
    from feedd.values import ObjectRef

_CLAIMS_MAX = 1000  # files: where there are more, they are something else
_AT_ONCE = 8
_log = structlog.get_logger("feedd.pipeline")


@dataclass(frozen=True, slots=True)
class Told:
    """What files beside the data tell, by the index of the shard.

    Attributes:
        exact: counted in this very version of the object, by feedd's own index; of packs, known from the listing.
        claimed: of others, where feedd's own says nothing: may turn out wrong.
        by: URLs of the files these are from.
        formats: how shards are to be read, where a file says so.
    """

    exact: dict[int, int]
    claimed: dict[int, int]
    by: tuple[str, ...]
    formats: dict[int, str] = field(default_factory=dict)


async def read_told(sources: Sources, resolved: Resolved, *, claims: bool = True) -> Told:
    """Read the files beside the data; one that cannot be used is passed over with a word in the log.

    Args:
        sources: where they are read from.
        resolved: the data, and what lies beside it.
        claims: whether to believe the counts of others.
    """
    indexes = [ref for ref in resolved.beside if is_index(ref.key)]
    others = [ref for ref in resolved.beside if is_claim(ref.key)]
    if not indexes and not others and not resolved.packs:
        return Told({}, {}, ())
    around = await CPU.run(Surroundings, resolved.refs if indexes or others else ())
    try:
        counted = await _own(sources, around, indexes)
        believed = await _others(sources, around, others)
    finally:
        await CPU.run(around.clear)
    told = await CPU.run(_weigh, resolved, counted, believed)
    if not claims:
        told = replace(told, claimed={}, by=tuple(ref.url for ref in counted))
    _log.info("sample counts known", shards=len(resolved.refs), known=len(told.exact), claimed=len(told.claimed))
    return told


class _Believed(NamedTuple):
    """The claims of one file that are believed, by the index of the shard."""

    counts: dict[int, int]
    formats: dict[int, str]


def _weigh(resolved: Resolved, counted: dict[ObjectRef, dict[int, int]], others: dict[ObjectRef, _Believed]) -> Told:
    exact: dict[int, int] = {}
    for counts in counted.values():
        exact |= counts
    exact |= pack_counts(resolved.refs, resolved.packs)
    by = [ref.url for ref in counted]
    claimed: dict[int, int] = {}
    formats: dict[int, str] = {}
    # those that know the bytes of what they counted go first
    for ref in sorted(others, key=lambda ref: not tells_bytes(ref.key)):
        formats = others[ref].formats | formats
        if others[ref].counts:
            by.append(ref.url)
        claimed = others[ref].counts | claimed
    return Told(exact, {shard: count for shard, count in claimed.items() if shard not in exact}, tuple(by), formats)


async def _own(sources: Sources, around: Surroundings, refs: Sequence[ObjectRef]) -> dict[ObjectRef, dict[int, int]]:
    found: dict[ObjectRef, dict[int, int]] = {}
    for ref in refs:
        try:
            _check_size(ref, INDEX_BYTES_MAX)
            found[ref] = await sources.texts.parse(ref, partial(_counted, around, ref))
        except (FeeddError, ValueError) as error:
            _pass_over(ref, error)
    return found


async def _others(sources: Sources, around: Surroundings, refs: Sequence[ObjectRef]) -> dict[ObjectRef, _Believed]:
    if len(refs) > _CLAIMS_MAX:
        _log.warning("files of sample counts passed over", reason=f"expected at most {_CLAIMS_MAX}, got {len(refs)}")
        return {}

    async def one(ref: ObjectRef) -> _Believed | None:
        try:
            _check_size(ref, CLAIMS_BYTES_MAX)
            return await sources.texts.parse(ref, partial(_believed, around, ref))
        except (FeeddError, ValueError) as error:
            _pass_over(ref, error)
            return None

    found: list[_Believed | None] = []
    for at in range(0, len(refs), _AT_ONCE):
        found += await run_all(one(ref) for ref in refs[at : at + _AT_ONCE])
    return {ref: believed for ref, believed in zip(refs, found, strict=True) if believed is not None}


def _counted(around: Surroundings, ref: ObjectRef, data: memoryview) -> dict[int, int]:
    return around.counted(ref, rows_of(data))


def _believed(around: Surroundings, ref: ObjectRef, data: memoryview) -> _Believed:
    claims = Claims(ref.key, data)
    counts: dict[int, int] = {}
    try:
        counts = around.believed(ref, claims)
    except ValueError as error:
        _pass_over(ref, error)
    try:
        return _Believed(counts, around.formats(ref, claims, counts.keys()))
    except ValueError:  # as was said: it is no such file
        return _Believed({}, {})


def _check_size(ref: ObjectRef, bytes_max: int) -> None:
    if ref.size_bytes > bytes_max:
        raise ValueError(f"expected at most {bytes_max} bytes, got {ref.size_bytes}")


def _pass_over(ref: ObjectRef, error: Exception) -> None:
    _log.warning("sample counts beside the data are passed over", object=ref.url, reason=str(error))
