"""Objects that cannot be read, found when a dataset is opened instead of after days of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.catalog.manifest import head_all
from feedd.catalog.object_kinds import PRIMARY, kind_of
from feedd.dataset.object_names import split_name
from feedd.dataset.packs import Packs
from feedd.errors import CacheTooSmall, NotFound, ObjectChanged, PermissionDenied
from feedd.fetch.hints import ARCHIVED, ARCHIVED_HINT
from feedd.flow.pools import CPU
from feedd.flow.range_sinks import MemorySink
from feedd.notices import EXAMPLES_MAX, Amount
from feedd.units import format_size
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.dataset.listing import Listing
    from feedd.protocols import ObjectStore
    from feedd.values import ObjectRef

_PROBES_MAX: Final = 1000
_LINES: Final = "jsonl ndjson lines csv tsv txt text svm libsvm"
_MAY_BE_EMPTY: Final = frozenset(f"{_LINES} tfrecord tfrecords rec recordio".split())
"""Formats, and extensions, of which a file without bytes is whole: it has no lines or records."""


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
        message = f"expected objects that can be read, got archived ones{asked}: {_amount(lost).text}"
        raise PermissionDenied(message, object=lost[0].url, hint=ARCHIVED_HINT, stage="source")


def empty_objects(listing: Listing) -> Amount:
    """Return the objects without bytes whose formats need some; takes microseconds for each empty object."""
    found: list[str] = []
    for number in np.flatnonzero(listing.sizes == 0).tolist():
        key = listing.refs[number].key
        kind = listing.format_of(number).partition(":")[0] or _extension(key)
        if kind not in _MAY_BE_EMPTY:
            found.append(key)
    for pack in listing.packs:
        if type(pack) is Packs:  # a line of a manifest is never empty, and a missing object is reported
            keys = map(pack.members.key, np.flatnonzero(pack.members.sizes == 0).tolist())
            found += (key for key in keys if kind_of(*split_name(key)) == PRIMARY)
    return Amount(len(found), 0, tuple(found[:EXAMPLES_MAX]))


def refuse_too_large(listing: Listing, limit_bytes: int) -> None:
    """Refuse a dataset with shards that can never be in the cache; spans of large objects are shards of their own.

    Raises:
        CacheTooSmall: shards are larger than the cache; all of them are counted, and the first are named.
    """
    numbers = np.flatnonzero(listing.sizes > limit_bytes).tolist() if limit_bytes else []
    lost = [ref for ref in map(listing.refs.__getitem__, numbers) if ref.conversion is None]  # others change their size
    if lost:
        message = f"expected shards of at most {format_size(limit_bytes)}, the cache's limit, got larger ones: "
        hint = "raise cache.size, or write smaller shards (feedd pack)"
        raise CacheTooSmall(message + _amount(lost).text, object=lost[0].url, hint=hint, stage="cache")


def _extension(key: str) -> str:
    """Return the extension of a name, without the number of a file (``part.tfrecord-00000-of-00128``)."""
    return key[key.rfind("/") + 1 :].lower().rpartition(".")[2].partition("-")[0]


def _amount(refs: Sequence[ObjectRef]) -> Amount:
    return Amount(len(refs), sum(ref.size_bytes for ref in refs), tuple(ref.key for ref in refs[:EXAMPLES_MAX]))


def _used(archived: Sequence[ObjectRef], refs: Sequence[ObjectRef], packs: Sequence[Packs]) -> list[ObjectRef]:
    """Return the archived objects that have bytes and are read, in order; takes long if there are many objects."""
    wanted = dict.fromkeys(ref for ref in archived if ref.size_bytes)
    read = set(refs)
    for pack in packs:
        read.update(ref for ref in map(pack.members.ref, range(len(pack.members.sizes))) if ref in wanted)
    return [ref for ref in wanted if ref in read]
