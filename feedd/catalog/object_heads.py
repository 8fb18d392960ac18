"""Objects whose names do not say what they are, and that cannot be read where they lie: their first bytes tell.

Of each source the first object of each ending is looked at, for all of that ending: so what a shard is stays a function
of the listing and what is listed, and a million of them cost one small read.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from feedd.convert.conversion_registry import DETECT_BYTES, form_by_head, is_unsaid
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_layout import is_pack
from feedd.flow.pools import CPU
from feedd.flow.range_sinks import MemorySink
from feedd.flow.tasks import run_all
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.sources import Sources
    from feedd.values import ObjectRef

_NUMBER = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?")
_TOKENS = "bin"  # numbers may begin like anything
_ENDINGS_MAX = 16  # looked at: who has more of them has no endings


async def with_heads(
    sources: Sources,
    refs: Sequence[ObjectRef],
    named: Mapping[int, str],
    firsts: Sequence[int] = (0,),
    cuts: Sequence[object] = (),
) -> tuple[ObjectRef, ...]:
    """Return shards, those whose first bytes say that they need one with a form.

    Args:
        sources: where first bytes are read from.
        refs: shards.
        named: the format of those whose URL names one, by index: nothing else tells what they are.
        firsts: the first index of each source.
        cuts: of each source, how its recipe cuts files of tokens, whose first bytes may be any; None: it does not.

    Raises:
        ObjectChanged, NotFound, PermissionDenied, StoreUnavailable: of an object that is looked at.
    """
    unsaid = await CPU.run(_unsaid, refs, named, firsts, cuts)
    forms: dict[int, str] = {}
    for found in await run_all(_looked(sources, refs, numbers) for numbers in unsaid):
        forms |= found
    if not forms:
        return tuple(refs)
    return tuple(replace(ref, form=forms[at]) if at in forms else ref for at, ref in enumerate(refs))


async def first_bytes(sources: Sources, ref: ObjectRef, most: int) -> bytes:
    """Return the first bytes of an object, so many or as many as it has.

    Raises:
        ObjectChanged, NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """
    head = bytearray(min(ref.size_bytes, most))
    if head:
        sink = MemorySink(memoryview(head))
        await sources.store(ref.root).read_into(ref, ByteRange(0, len(head)), sink)
    return bytes(head)


async def _looked(sources: Sources, refs: Sequence[ObjectRef], numbers: Sequence[int]) -> dict[int, str]:
    """Return the form of objects of one ending, by index; none: they need none."""
    ref = refs[numbers[0]]
    form = form_by_head(await first_bytes(sources, ref, DETECT_BYTES), ref.size_bytes)
    return dict.fromkeys(numbers, form) if form else {}


def _unsaid(
    refs: Sequence[ObjectRef], named: Mapping[int, str], firsts: Sequence[int], cuts: Sequence[object]
) -> list[list[int]]:
    """Return the indices of objects whose names say nothing, by source and ending."""
    found: dict[tuple[int, str], list[int]] = {}
    said: dict[str, bool] = {}  # by ending, of which a million objects have few
    for source, (first, end) in enumerate(itertools.pairwise((*firsts, len(refs)))):
        if source < len(cuts) and cuts[source] is not None:
            continue
        for at in range(first, end):
            ref = refs[at]
            if ref.form or not ref.size_bytes or at in named or is_pack(ref):
                continue
            ending = ending_of(ref.key)
            if ending not in said:
                said[ending] = ending == _TOKENS or not is_unsaid(ref.key)
            if not said[ending]:
                found.setdefault((source, ending), []).append(at)
    return list(found.values())[:_ENDINGS_MAX]


def ending_of(key: str) -> str:
    """Return what follows the last dot of a name, without its numbers; empty: nothing, or a number."""
    extension = split_name(key)[1]
    return _NUMBER.sub("", extension) if extension else ""
