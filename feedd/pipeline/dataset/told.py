"""Sample counts that files beside the data tell: feedd's own index, and what other tools leave there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from feedd.errors import FeeddError
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.plan.beside import CLAIMS_BYTES_MAX, Surroundings, is_claim, parse_claims
from feedd.plan.counts import INDEX_BYTES_MAX, folder_of, is_index, known, parse
from feedd.plan.objects.packs import pack_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.plan.beside import Claim
    from feedd.plan.counts import Row
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
    indexes = await _own(sources, [ref for ref in resolved.beside if is_index(ref.key)])
    others = await _others(sources, [ref for ref in resolved.beside if is_claim(ref.key)])
    if not indexes and not others and not resolved.packs:
        return Told({}, {}, ())
    told = await CPU.run(_weigh, resolved, indexes, others)
    if not claims:
        told = replace(told, claimed={}, by=tuple(ref.url for ref in indexes))
    _log.info("sample counts known", shards=len(resolved.refs), known=len(told.exact), claimed=len(told.claimed))
    return told


def _weigh(resolved: Resolved, indexes: dict[ObjectRef, list[Row]], others: dict[ObjectRef, list[Claim]]) -> Told:
    refs = resolved.refs
    by = [ref.url for ref in indexes]
    exact = known(refs, {(ref.root, folder_of(ref.key)): rows for ref, rows in indexes.items()})
    exact |= pack_counts(refs, resolved.packs)
    claimed: dict[int, int] = {}
    formats: dict[int, str] = {}
    around = Surroundings(refs) if others else None
    # those that know the bytes of what they counted go first
    for ref in sorted(others, key=lambda ref: any(claim.size_bytes is None for claim in others[ref])):
        assert around is not None
        found: dict[int, int] = {}
        try:
            found = around.believed(ref, others[ref])
        except ValueError as error:
            _pass_over(ref, error)
        formats = around.formats(ref, others[ref], found.keys()) | formats
        if not found:
            continue
        by.append(ref.url)
        claimed = found | claimed
    return Told(exact, {shard: count for shard, count in claimed.items() if shard not in exact}, tuple(by), formats)


async def _own(sources: Sources, refs: Sequence[ObjectRef]) -> dict[ObjectRef, list[Row]]:
    found: dict[ObjectRef, list[Row]] = {}
    for ref in refs:
        try:
            found[ref] = await CPU.run(parse, await _read(sources, ref, INDEX_BYTES_MAX))
        except (FeeddError, ValueError) as error:
            _pass_over(ref, error)
    return found


async def _others(sources: Sources, refs: Sequence[ObjectRef]) -> dict[ObjectRef, list[Claim]]:
    if len(refs) > _CLAIMS_MAX:
        _log.warning("files of sample counts passed over", reason=f"expected at most {_CLAIMS_MAX}, got {len(refs)}")
        return {}

    async def one(ref: ObjectRef) -> list[Claim] | None:
        try:
            data = await _read(sources, ref, CLAIMS_BYTES_MAX)
            return await CPU.run(parse_claims, ref.key, data)
        except (FeeddError, ValueError) as error:
            _pass_over(ref, error)
            return None

    found: list[list[Claim] | None] = []
    for at in range(0, len(refs), _AT_ONCE):
        found += await run_all(one(ref) for ref in refs[at : at + _AT_ONCE])
    return {ref: claims for ref, claims in zip(refs, found, strict=True) if claims is not None}


async def _read(sources: Sources, ref: ObjectRef, bytes_max: int) -> bytes:
    if ref.size_bytes > bytes_max:
        raise ValueError(f"expected at most {bytes_max} bytes, got {ref.size_bytes}")
    data = bytearray(ref.size_bytes)
    with memoryview(data) as target:
        await sources.fetcher.fetch(ref, target)
    return bytes(data)


def _pass_over(ref: ObjectRef, error: Exception) -> None:
    _log.warning("sample counts beside the data are passed over", object=ref.url, reason=str(error))
