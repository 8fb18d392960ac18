"""Archived objects, found when a dataset is opened instead of after days of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.catalog.manifest import head_all
from feedd.dataset.passed_over import amount_of
from feedd.errors import NotFound, ObjectChanged, PermissionDenied
from feedd.fetch.hints import ARCHIVED, ARCHIVED_HINT
from feedd.flow.pools import CPU
from feedd.flow.range_sinks import MemorySink
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.dataset.packs import Packs
    from feedd.protocols import ObjectStore
    from feedd.values import ObjectRef

_PROBES_MAX: Final = 1000


async def refuse_archived(
    archived: Sequence[ObjectRef],
    refs: Sequence[ObjectRef],
    packs: Sequence[Packs],
    store_of: Callable[[str], ObjectStore],
    in_flight: int,
) -> None:
    """Refuse a dataset with objects that must be restored before they can be read.

    A listing tells the storage class, but not whether an object has been restored. So the first byte of each such
    object is requested, of at most 1,000 that are spread evenly over all of them.

    Args:
        archived: objects that may have to be restored.
        refs: shards and packs of the dataset; objects that are in neither are not read.
        packs: the packs.
        store_of: returns the store of a root.
        in_flight: bound on concurrent requests.

    Raises:
        PermissionDenied: objects are archived; all of them are counted, and the first are named.
        StoreUnavailable: the store's answer.
    """
    used = await CPU.run(_used, archived, refs, packs)
    if not used:
        return
    step = -(-len(used) // _PROBES_MAX)
    probed = {(ref.root, ref.key): ref for ref in used[::step]}

    async def is_archived(root: str, key: str) -> bool:
        ref = probed[root, key]
        try:
            await store_of(root).read_into(ref, ByteRange(0, 1), MemorySink(memoryview(bytearray(1))))
        except PermissionDenied as denied:
            return denied.message == ARCHIVED
        except (NotFound, ObjectChanged):
            return False  # the first read says so
        return False

    found = await head_all(list(probed), is_archived, in_flight)
    lost = [ref for ref, refused in zip(probed.values(), found, strict=True) if refused]
    if lost:
        asked = "" if step == 1 else f" of {len(probed)} that were asked for"
        message = f"expected objects that can be read, got archived ones{asked}: {amount_of(lost).text}"
        raise PermissionDenied(message, object=lost[0].url, hint=ARCHIVED_HINT, stage="source")


def _used(archived: Sequence[ObjectRef], refs: Sequence[ObjectRef], packs: Sequence[Packs]) -> list[ObjectRef]:
    """Return the archived objects that have bytes and are read, in order; takes long if there are many objects."""
    wanted = dict.fromkeys(ref for ref in archived if ref.size_bytes)
    read = set(refs)
    for pack in packs:
        read.update(ref for ref in map(pack.members.ref, range(len(pack.members.sizes))) if ref in wanted)
    return [ref for ref in wanted if ref in read]
