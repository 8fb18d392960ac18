"""The objects of a very large listing in columns: about 40 bytes for each, and the text of its key. Pure."""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, overload

import numpy as np

from feedd.dataset.packs import TAG_BYTES, packed_tag, unpacked_tag
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from feedd.conversion import Conversion

_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class ObjectColumns:
    """Objects of one store in columns.

    Attributes:
        root: root of their store.
        base: common prefix of all keys.
        keys: the rest of each key, UTF-8, concatenated.
        key_ends: the start of the first key, 0, and the end of each in ``keys``.
        sizes: int64[objects], bytes.
        tags: etags as ``packed_tag`` returns them, concatenated.
        tag_ends: the start of the first etag, 0, and the end of each in ``tags``.
    """

    root: str
    base: str
    keys: bytes
    key_ends: Sequence[int]
    sizes: NDArray[np.int64]
    tags: bytes
    tag_ends: Sequence[int]


class RefColumns(Sequence[ObjectRef]):
    """Objects as a sequence that makes each when it is asked for."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        kinds: dict[tuple[str, Conversion | None], int] = {}
        keys, tags = bytearray(), bytearray()
        sizes, kind_of = array("q"), array("i")
        key_ends, tag_ends = array("q", [0]), array("q", [0])
        for ref in refs:
            keys += ref.key.encode("utf-8", "surrogatepass")
            key_ends.append(len(keys))
            tags += packed_tag(ref.etag)
            tag_ends.append(len(tags))
            sizes.append(ref.size_bytes)
            kind_of.append(kinds.setdefault((ref.root, ref.conversion), len(kinds)))
        self._base = ""
        self._keys, self._tags = bytes(keys), bytes(tags)
        self._kinds = list(kinds)
        self._sizes: Sequence[int] = sizes
        self._kind_of: Sequence[int] = kind_of
        self._key_ends: Sequence[int] = key_ends
        self._tag_ends: Sequence[int] = tag_ends

    @classmethod
    def of(cls, columns: ObjectColumns, conversions: Sequence[Conversion | None], which: Sequence[int]) -> Self:
        """Return the objects of columns, without a Python object for each.

        Args:
            columns: the objects.
            conversions: the conversions that some of the objects need.
            which: the index of each object's conversion; bytes take the least memory.
        """
        self = cls(())
        self._base, self._keys, self._tags = columns.base, columns.keys, columns.tags
        self._key_ends, self._tag_ends = columns.key_ends, columns.tag_ends
        self._sizes = columns.sizes.astype(np.int64, copy=False).data  # its items are of type int
        self._kinds, self._kind_of = [(columns.root, conversion) for conversion in conversions], which
        return self

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> ObjectRef: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ObjectRef]: ...
    def __getitem__(self, at: int | slice) -> ObjectRef | Sequence[ObjectRef]:
        if isinstance(at, slice):
            return tuple(self._ref(number) for number in range(*at.indices(len(self))))
        number = operator.index(at)
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected an object of {len(self)}, got number {number}")
        return self._ref(number % len(self))

    def __iter__(self) -> Iterator[ObjectRef]:
        return map(self._ref, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RefColumns):
            return NotImplemented
        if self._base != other._base:
            return len(self) == len(other) and all(map(operator.eq, self, other))
        return self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]  # as a list

    @property
    def conversions(self) -> set[Conversion | None]:
        """All conversions of the objects."""
        return {conversion for _, conversion in self._kinds}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each object, int64[objects], read-only."""
        found = np.asarray(self._sizes, np.int64).view()
        found.setflags(write=False)
        return found

    def converted(self, conversion_of: Callable[[Conversion | None], Conversion | None]) -> RefColumns:
        """Return the same objects in other conversions; the columns are shared.

        Args:
            conversion_of: returns the new conversion of the objects that have the given one.
        """
        found = RefColumns(())
        found._base, found._keys, found._tags, found._sizes = self._base, self._keys, self._tags, self._sizes
        found._key_ends, found._tag_ends, found._kind_of = self._key_ends, self._tag_ends, self._kind_of
        found._kinds = [(root, conversion_of(conversion)) for root, conversion in self._kinds]
        return found

    def blocks(self) -> Iterator[tuple[list[str], Sequence[int], list[str]]]:
        """Yield URLs, sizes and etags of some thousand objects at a time."""
        for low in range(0, len(self), _BLOCK):
            high = min(low + _BLOCK, len(self))
            which, keys = self._kind_of, self._texts(low, high)
            if len(self._kinds) == 1:
                start = ObjectRef(self._kinds[0][0], self._base, 0, "").url
                urls = [start + key for key in keys]
            else:
                starts = [ObjectRef(root, self._base, 0, "").url for root, _ in self._kinds]
                urls = [starts[which[at]] + key for at, key in enumerate(keys, low)]
            yield urls, self._sizes[low:high], self._etags(low, high)

    def names(self) -> Iterator[list[str]]:
        """Yield the keys below the folder of all objects, some thousand at a time."""
        for low in range(0, len(self), _BLOCK):
            yield self._texts(low, min(low + _BLOCK, len(self)))

    def hashes(self) -> NDArray[np.int64]:
        """Return a hash of each object's version, int64[objects], as ``hash_of`` does."""
        start = _text_hash(self._base.encode("utf-8", "surrogatepass"))
        roots = [start ^ _text_hash(root.encode()) for root, _ in self._kinds]
        keys = itertools.chain.from_iterable(self._pieces(self._keys, self._key_ends))
        found = np.fromiter(map(hash, keys), np.int64, len(self))
        ends = self._tag_ends
        if isinstance(ends, range) and ends.step == TAG_BYTES:
            found ^= np.frombuffer(self._tags, np.int64)[::2]
        else:
            tags = itertools.chain.from_iterable(self._pieces(self._tags, ends))
            found ^= np.fromiter(map(_tag_hash, tags), np.int64, len(self))
        several = len(roots) != 1
        found ^= np.fromiter(map(roots.__getitem__, self._kind_of), np.int64, len(self)) if several else roots[0]
        return found

    def hash_of(self, ref: ObjectRef) -> int:
        """Return a hash of an object's version, without its conversion; it differs between processes."""
        base = self._base
        if not ref.key.startswith(base):
            return 0  # none of these objects has such a key
        found = _text_hash(base.encode("utf-8", "surrogatepass")) ^ _text_hash(ref.root.encode())
        return found ^ hash(ref.key[len(base) :].encode("utf-8", "surrogatepass")) ^ _tag_hash(packed_tag(ref.etag))

    def _texts(self, low: int, high: int) -> list[str]:
        """Return the keys of some objects, without the base."""
        ends = self._key_ends
        block = self._keys[ends[low] : ends[high]]
        if not block.isascii():
            texts = (self._keys[ends[at] : ends[at + 1]] for at in range(low, high))
            return [text.decode("utf-8", "surrogatepass") for text in texts]
        text, first = block.decode("ascii"), ends[low]
        if isinstance(ends, range) and ends.step:
            return [text[at : at + ends.step] for at in range(0, len(text), ends.step)]
        borders = [end - first for end in ends[low : high + 1]]
        return [text[start:end] for start, end in itertools.pairwise(borders)]

    def _etags(self, low: int, high: int) -> list[str]:
        ends = self._tag_ends
        if isinstance(ends, range) and ends.step == TAG_BYTES:
            text, width = self._tags[ends[low] : ends[high]].hex(), 2 * TAG_BYTES
            return [text[at : at + width] for at in range(0, len(text), width)]
        return [unpacked_tag(self._tags[ends[at] : ends[at + 1]]) for at in range(low, high)]

    def _pieces(self, texts: bytes, ends: Sequence[int]) -> Iterator[list[bytes]]:
        """Yield some thousand texts at a time."""
        for low in range(0, len(self), _BLOCK):
            borders = ends[low : low + _BLOCK + 1]
            yield [texts[start:end] for start, end in itertools.pairwise(borders)]

    def _columns(self) -> tuple[object, ...]:
        numbers = map(list, (self._sizes, self._kind_of, self._key_ends, self._tag_ends))
        return self._kinds, *numbers, self._keys, self._tags

    def _ref(self, number: int) -> ObjectRef:
        root, conversion = self._kinds[self._kind_of[number]]
        key = self._keys[self._key_ends[number] : self._key_ends[number + 1]].decode("utf-8", "surrogatepass")
        tag = unpacked_tag(self._tags[self._tag_ends[number] : self._tag_ends[number + 1]])
        return ObjectRef(root, self._base + key, self._sizes[number], tag, conversion)


class ShardNumbers:
    """Dataset indices by object version. Two versions with one 64-bit hash are taken for the same; that is for hints.

    Args:
        refs: the objects in the dataset's order. Building takes half a microsecond for each.
    """

    def __init__(self, refs: Collection[ObjectRef]) -> None:
        self._hash_of: Callable[[ObjectRef], int]
        if isinstance(refs, RefColumns):
            hashes, self._hash_of = refs.hashes(), refs.hash_of
        else:
            hashes, self._hash_of = np.fromiter(map(_hash_of, refs), np.int64, len(refs)), _hash_of
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._numbers = order.astype(np.int32)

    def find(self, wanted: Collection[ObjectRef], refs: Sequence[ObjectRef]) -> NDArray[np.int64]:
        """Return the dataset index of each wanted object, int64[wanted]; -1: it is not in the dataset.

        Args:
            wanted: objects, with their conversions. Sizes are not compared, because a converted shard has its own.
            refs: the objects of the dataset, each with the conversion in which it is read.
        """
        hashes = np.fromiter(map(self._hash_of, wanted), np.int64, len(wanted))
        lows = np.searchsorted(self._hashes, hashes, "left")
        highs = np.searchsorted(self._hashes, hashes, "right")
        found = np.full(len(wanted), -1, np.int64)
        for at, ref in enumerate(wanted):
            for number in self._numbers[lows[at] : highs[at]].tolist():
                if refs[number].conversion == ref.conversion:
                    found[at] = number
                    break
        return found


def _hash_of(ref: ObjectRef) -> int:
    return hash((ref.root, ref.key, ref.etag))


def _text_hash(text: bytes) -> int:
    """Return a hash that differs from the hashes of keys: a key may equal the base."""
    return hash((text,))


def _tag_hash(tag: bytes) -> int:
    return int.from_bytes(tag[:8], "little", signed=True) if len(tag) == TAG_BYTES else hash(tag)
