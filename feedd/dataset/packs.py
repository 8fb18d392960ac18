"""The packs of a listing: columns over all their objects, so that ten million objects need no Python objects. Pure."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.dataset.pack_layout import TAG, Table, is_pack, table_bytes
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.shard_index import ShardIndex

TAG_BYTES = 16
"""Size of an MD5 sum, which most etags are."""


def packed_tag(etag: str) -> bytes:
    """Return an etag, in fewer bytes if it is an MD5 sum."""
    if len(etag) == 2 * TAG_BYTES:
        try:
            tag = bytes.fromhex(etag)
        except ValueError:
            tag = b""
        if len(tag) == TAG_BYTES and tag.hex() == etag:
            return tag
    text = b"\0" + etag.encode("utf-8", "surrogatepass")
    if len(text) == TAG_BYTES:
        return b"\0" + text
    return b"\1" + text if text.startswith(b"\0\0") and len(text) == TAG_BYTES + 1 else text


def unpacked_tag(tag: bytes) -> str:
    """Return the etag that ``packed_tag`` was given."""
    if len(tag) == TAG_BYTES:
        return tag.hex()
    longer = tag.startswith(b"\1") or (tag.startswith(b"\0\0") and len(tag) == TAG_BYTES + 1)
    return tag[2 if longer else 1 :].decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Members:
    """Objects, in columns.

    Attributes:
        root: root of their store.
        base: common prefix of all keys: the folder of the URL.
        keys: the rest of each key, UTF-8, concatenated.
        key_ends: int64[objects], end of each key in ``keys``.
        sizes: int64[objects], bytes.
        tags: packed etags, concatenated.
        tag_ends: int64[objects], end of each etag in ``tags``.
        sample: int64[objects], the sample of each object, from 0 in order.
    """

    root: str
    base: str
    keys: bytes
    key_ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags: bytes
    tag_ends: NDArray[np.int64]
    sample: NDArray[np.int64]

    def key(self, number: int) -> str:
        """Return the key of one object."""
        start = int(self.key_ends[number - 1]) if number else 0
        return self.base + self.keys[start : int(self.key_ends[number])].decode("utf-8", "surrogatepass")

    def ref(self, number: int) -> ObjectRef:
        """Return one object as a ref."""
        start = int(self.tag_ends[number - 1]) if number else 0
        tag = unpacked_tag(self.tags[start : int(self.tag_ends[number])])
        return ObjectRef(self.root, self.key(number), int(self.sizes[number]), tag)

    def offset(self, number: int) -> int:  # noqa: ARG002 - objects of manifests differ
        """Return the offset in its ref at which one object begins: 0, because the object is the whole ref."""
        return 0


def texts_at(
    blob: bytes | bytearray, ends: NDArray[np.int64], numbers: NDArray[np.int64]
) -> tuple[bytes, NDArray[np.int64]]:
    """Return some of many concatenated texts, concatenated in another order, and the end of each."""
    starts = np.concatenate(([0], ends[:-1]))[numbers].tolist()
    view = memoryview(blob)
    pieces = [view[start:end] for start, end in zip(starts, ends[numbers].tolist(), strict=True)]
    return b"".join(pieces), np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Packs:
    """Packs of the objects of one URL.

    Attributes:
        members: all their objects, in order.
        firsts: int64[packs + 1], the first object of each pack, and the number of objects.
        refs: the packs, for the cache and the plan.
        counts: samples of each pack.
    """

    members: Members
    firsts: NDArray[np.int64]
    refs: tuple[ObjectRef, ...]
    counts: tuple[int, ...]
    _numbers: dict[ObjectRef, int] = field(repr=False)

    @classmethod
    def of(cls, members: Members, firsts: NDArray[np.int64]) -> Packs:
        """Create the packs' refs; takes about ten microseconds per pack."""
        ends = firsts.tolist()
        spans = [range(low, high) for low, high in itertools.pairwise(ends)]
        refs = tuple(_ref(members, span) for span in spans)
        counts = tuple(int(members.sample[span.stop - 1] - members.sample[span.start]) + 1 for span in spans)
        return cls(members, firsts, refs, counts, {ref: number for number, ref in enumerate(refs)})

    def __len__(self) -> int:
        """Return how many packs there are."""
        return len(self.refs)

    def find(self, ref: ObjectRef) -> int | None:
        """Return the number of a pack, or None if it is none of these."""
        return self._numbers.get(ref)

    def span(self, number: int) -> range:
        """Return the objects of a pack."""
        return range(int(self.firsts[number]), int(self.firsts[number + 1]))

    def samples(self, number: int) -> slice:
        """Return the samples of a pack, among all samples."""
        low = int(self.members.sample[self.firsts[number]])
        return slice(low, low + self.counts[number])

    @property
    def has_texts(self) -> bool:
        """Whether all samples of a pack need its object 0, the text of a manifest's lines."""
        return False

    def objects_of(self, number: int, samples: NDArray[np.int64]) -> set[int]:
        """Return which objects of a pack hold some of its samples.

        Args:
            number: index of the pack.
            samples: int64[n], ordinals within the pack.
        """
        span = self.span(number)
        if self.counts[number] == len(span):  # one object per sample
            return set(samples.tolist())
        of = self.members.sample[span.start : span.stop] - self.members.sample[span.start]
        return set(np.flatnonzero(np.isin(of, samples)).tolist())

    def own_index(self, number: int) -> ShardIndex | None:  # noqa: ARG002 - packs of lines differ
        """Return the index of a pack whose table does not tell the fields; None: its table does."""
        return None

    def empty_objects(self, number: int) -> list[int]:
        """Return the objects of a pack that have no bytes, numbered from 0 in the pack."""
        span = self.span(number)
        found: list[int] = np.flatnonzero(self.members.sizes[span.start : span.stop] == 0).tolist()
        return found

    def table(self, number: int) -> Table:
        """Return the table at the start of a pack."""
        return _table(self.members, self.span(number))


def _table(members: Members, span: range) -> Table:
    low, high = span.start, span.stop
    key_at = int(members.key_ends[low - 1]) if low else 0
    ends = members.key_ends[low:high]
    return Table(
        members.sizes[low:high],
        members.sample[low:high] - members.sample[low],
        ends - key_at,
        members.keys[key_at : int(ends[-1])],
    )


def _ref(members: Members, span: range) -> ObjectRef:
    """Return a pack's ref: its key names the first object and how many more, its etag digests the content."""
    low, high = span.start, span.stop
    table = _table(members, span)
    tag_at = int(members.tag_ends[low - 1]) if low else 0
    digest = hashlib.blake2b(digest_size=16)
    tags = members.tag_ends[low:high]
    for part in (
        f"{len(members.root)} {members.root}{members.base}".encode("utf-8", "surrogatepass"),
        table.render(),
        (tags - tag_at).astype("<i8").tobytes(),
        members.tags[tag_at : int(tags[-1])],
    ):
        digest.update(part)
    size_bytes = table_bytes(len(span), len(table.keys)) + int(table.sizes.sum())
    return ObjectRef(members.root, f"{members.key(low)}+{len(span) - 1}", size_bytes, TAG + digest.hexdigest())


def pack_counts(refs: Sequence[ObjectRef], packs: Iterable[Packs]) -> dict[int, int]:
    """Return the samples of the packs among ``refs``, by index into ``refs``."""
    known = {ref: count for one in packs for ref, count in zip(one.refs, one.counts, strict=True)}
    return {number: known[ref] for number, ref in enumerate(refs) if is_pack(ref)} if known else {}
