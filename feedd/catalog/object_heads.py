"""Objects whose names do not tell their format, and which need a conversion: their first bytes decide.

For each source and file name ending, the first object is read, and decides for all objects with that ending. So a
shard's format depends only on the listing and on the listed objects, and a million objects cost one small read.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from feedd.dataset.object_names import split_name
from feedd.dataset.pack_layout import is_pack
from feedd.flow.pools import CPU
from feedd.flow.range_sinks import MemorySink
from feedd.flow.tasks import run_all
from feedd.tables.registry import DETECT_BYTES, conversion_by_head, is_unsaid
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.sources import Sources
    from feedd.conversion import Conversion
    from feedd.values import ObjectRef

_NUMBER = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?")
_TOKENS = "bin"  # raw numbers may begin with any bytes
_ENDINGS_MAX = 16  # endings to check; more endings are most likely no endings at all


async def with_heads(
    sources: Sources,
    refs: Sequence[ObjectRef],
    named: Mapping[int, str],
    firsts: Sequence[int] = (0,),
    cuts: Sequence[object] = (),
) -> tuple[ObjectRef, ...]:
    """Return the shards, with a conversion where the first bytes show that one is needed.

    Args:
        sources: reads the first bytes.
        refs: shards.
        named: formats that URLs name, by index; these shards are not checked.
        firsts: the first index of each source.
        cuts: how each source's recipe splits files of tokens, whose first bytes may be any; None: it does not.

    Raises:
        ObjectChanged, NotFound, PermissionDenied, StoreUnavailable: the store's answer about a checked object.
    """
    unsaid = await CPU.run(_unsaid, refs, named, firsts, cuts)
    conversions: dict[int, Conversion] = {}
    for found in await run_all(_looked(sources, refs, numbers) for numbers in unsaid):
        conversions |= found
    if not conversions:
        return tuple(refs)
    return tuple(replace(ref, conversion=conversions[at]) if at in conversions else ref for at, ref in enumerate(refs))


async def first_bytes(sources: Sources, ref: ObjectRef, most: int) -> bytes:
    """Return the first ``most`` bytes of an object, or as many as it has.

    Raises:
        ObjectChanged, NotFound, PermissionDenied, StoreUnavailable: the store's answer.
    """
    head = bytearray(min(ref.size_bytes, most))
    if head:
        sink = MemorySink(memoryview(head))
        await sources.store(ref.root).read_into(ref, ByteRange(0, len(head)), sink)
    return bytes(head)


async def _looked(sources: Sources, refs: Sequence[ObjectRef], numbers: Sequence[int]) -> dict[int, Conversion]:
    """Return the conversion of all objects with one ending, by index; empty: they need none."""
    ref = refs[numbers[0]]
    conversion = conversion_by_head(await first_bytes(sources, ref, DETECT_BYTES), ref.size_bytes)
    return {} if conversion is None else dict.fromkeys(numbers, conversion)


def _unsaid(
    refs: Sequence[ObjectRef], named: Mapping[int, str], firsts: Sequence[int], cuts: Sequence[object]
) -> list[list[int]]:
    """Return the indices of objects whose names do not tell their format, by source and ending."""
    found: dict[tuple[int, str], list[int]] = {}
    said: dict[str, bool] = {}  # by ending, because a million objects have few endings
    for source, (first, end) in enumerate(itertools.pairwise((*firsts, len(refs)))):
        if source < len(cuts) and cuts[source] is not None:
            continue
        for at in range(first, end):
            ref = refs[at]
            if ref.conversion is not None or not ref.size_bytes or at in named or is_pack(ref):
                continue
            ending = ending_of(ref.key)
            if ending not in said:
                said[ending] = ending == _TOKENS or not is_unsaid(ref.key)
            if not said[ending]:
                found.setdefault((source, ending), []).append(at)
    return list(found.values())[:_ENDINGS_MAX]


def ending_of(key: str) -> str:
    """Return the extension of a name without numbers; empty: there is none, or only a number."""
    extension = split_name(key)[1]
    return _NUMBER.sub("", extension) if extension else ""
