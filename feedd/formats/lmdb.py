"""LMDB files, read in place: each value is contiguous in the file, inside a leaf page or in separate pages.

Little-endian, 64 bits, data version 1 [openldap.org, libraries/liblmdb/mdb.c]. The file consists of pages of one size.
A page begins with u64 number, u16 unused, u16 flags, u16 lower, u16 upper. In pages of large values, a u32 page count
replaces the last two. Then come u16 offsets of nodes, up to ``lower``. A node is u16 low, u16 high, u16 flags, u16 key
size, key, value. In a leaf, low and high are the value's size. In a branch, low, high and flags are the number of a
page. If a value is too large for a leaf, the node holds the u64 number of its first page. These pages hold the value
behind one page header. Pages 0 and 1 hold the meta record alternately; the newer record counts.

Keys are the samples' keys, in order, and a value is a sample with one field. If all keys are a name, a dash and a
number, such as ``image-000000001`` and ``label-000000001``, each name is a field. LMDB's own library is not used,
because it trusts the files that it reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import Unsupported
from feedd.formats.format_spec import FormatSpec
from feedd.formats.framing import KEY_BYTES, ShardReader, field_names
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELD: Final = "data"
"""Name of the only field, if keys do not name several fields."""

_MAGIC: Final = (0xBEEFC0DE).to_bytes(4, "little") + (1).to_bytes(4, "little")
_HEAD_BYTES: Final = 16
_META_BYTES: Final = 152
_NODE_BYTES: Final = 8
_BRANCH, _LEAF, _OVERFLOW, _KINDS = 0x01, 0x02, 0x04, 0x2F
_BIG, _SUB_OR_TWICE = 0x01, 0x06
_TWICE: Final = 0x04  # flag of a database whose keys may have several values
_NOWHERE: Final = (1 << 64) - 1
_DEPTH_MAX: Final = 32
_KEY_BYTES_MAX: Final = 1 << 30
_LOCK: Final = "lock.mdb"
_ABOUT: Final = (b"__len__", b"__keys__", b"length", b"num-samples")
"""Keys of entries that describe the other entries."""

_NAMED: Final = re.compile(rb"([A-Za-z][A-Za-z_]*)-([0-9]+)")
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05].*\.", re.DOTALL)
_PICKLE_BYTES_MAX: Final = 64 << 20


class LmdbFormat:
    """``protocols.ShardFormat`` of LMDB data files; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``lmdb``."""
        return "lmdb"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the values; keys are LMDB's keys if these are ASCII, else numbers.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors; LMDB's lock file beside the data has no samples.

        Raises:
            BadShard: not LMDB, or its pages contradict each other.
            Unsupported: several databases in one file, several values per key, or pickles.
        """
        if url.rsplit("/", 1)[-1].lower() == _LOCK:
            return NumberedIndex((), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), 0)
        return _Reader(data, url).read()


@dataclass(frozen=True, slots=True)
class _Meta:
    """The main database, as a meta page describes it."""

    page_bytes: int
    flags: int
    depth: int
    entries: int
    root: int
    change: int


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of some pages, in order; int64[nodes] each.

    Attributes:
        end: end of the node's page.
        key_at: first byte of the key.
        key_bytes: size of the key.
        words: low, high and flags.
    """

    end: NDArray[np.int64]
    key_at: NDArray[np.int64]
    key_bytes: NDArray[np.int64]
    words: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class _Reader(ShardReader):
    """Reads the entries of one file, all pages of a tree level at a time."""

    def __init__(self, data: memoryview, url: str) -> None:
        super().__init__(data, url)
        self._raw = np.frombuffer(data, np.uint8)

    def read(self) -> ShardIndex:
        """Walk from the root to the leaves; return the index."""
        meta = self._meta()
        if meta.flags & _TWICE:
            raise self._unsupported("one value per key, got a database with several values per key (DUPSORT)")
        pages = np.zeros(0, np.int64)
        if meta.root != _NOWHERE:
            if not 0 < meta.depth <= _DEPTH_MAX:
                self.fail(0, f"a tree of at most {_DEPTH_MAX} levels", str(meta.depth))
            pages = self._pages(np.array([meta.root], np.uint64), meta)
        for _ in range(meta.depth - 1 if len(pages) else 0):
            low, high, top = self._nodes(pages, _BRANCH, meta).words
            pages = self._pages((low | high << 16 | top << 32).astype(np.uint64), meta)
        nodes = self._nodes(pages, _LEAF, meta)
        if len(nodes.end) != meta.entries:
            self.fail(0, f"{meta.entries} entries", f"{len(nodes.end)} in the leaves")
        starts, sizes = self._values(nodes, meta)
        kept = np.flatnonzero(~self._about(nodes))
        if len(kept):
            self._refuse_pickles(int(starts[kept[0]]), int(sizes[kept[0]]))
        return self._index(nodes.key_at[kept], nodes.key_bytes[kept], starts[kept], sizes[kept])

    def _meta(self) -> _Meta:
        """Return the newer of the two meta records."""
        found = self._meta_at(0)
        if found is None:
            self.fail(0, "LMDB's first page, version 1", repr(bytes(self._data[_HEAD_BYTES : _HEAD_BYTES + 8])))
        page_bytes = found.page_bytes
        if not 256 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
            self.fail(40, "a page size", str(page_bytes))
        other = self._meta_at(page_bytes)
        newer = found if other is None or other.change < found.change else other
        if newer.page_bytes != page_bytes:
            self.fail(page_bytes + 40, f"pages of {page_bytes} bytes", str(newer.page_bytes))
        return newer

    def _meta_at(self, at: int) -> _Meta | None:
        page = bytes(self._data[at : at + _META_BYTES])
        if len(page) < _META_BYTES or page[_HEAD_BYTES : _HEAD_BYTES + 8] != _MAGIC:
            return None

        def number(place: int, size: int) -> int:
            return int.from_bytes(page[place : place + size], "little")

        return _Meta(number(40, 4), number(92, 2), number(94, 2), number(120, 8), number(128, 8), number(144, 8))

    def _pages(self, numbers: NDArray[np.uint64], meta: _Meta) -> NDArray[np.int64]:
        """Return the start of each page, int64[pages]."""
        count = len(self._data) // meta.page_bytes
        if len(numbers) > count or (numbers >= count).any():
            got = f"{len(numbers)} up to {int(numbers.max())}"
            self.fail(0, f"different page numbers below {count}", got)
        return numbers.astype(np.int64) * meta.page_bytes

    def _nodes(self, pages: NDArray[np.int64], kind: int, meta: _Meta) -> _Nodes:
        """Return the nodes of pages that must all be of one kind."""
        wrong = np.flatnonzero(self._u16(pages + 10) & _KINDS != kind)
        if len(wrong):
            at = int(pages[wrong[0]])
            self.fail(at, f"a page of kind {kind}", f"flags {int(self._u16(pages[wrong[:1]] + 10)[0])}")
        lower = self._u16(pages + 12)
        if ((lower < _HEAD_BYTES) | (lower > meta.page_bytes)).any():
            self.fail(int(pages[0]), "offsets of nodes within their page", f"up to {int(lower.max())}")
        counts = (lower - _HEAD_BYTES) >> 1
        total = int(counts.sum())
        self.check_cells(1, total, key_bytes=KEY_BYTES)
        page = np.repeat(pages, counts)
        number = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        place = self._u16(page + _HEAD_BYTES + 2 * number)
        end = page + meta.page_bytes
        node = page + place
        self._within(node + _NODE_BYTES, end, place < np.repeat(lower, counts))
        key_bytes = self._u16(node + 6)
        key_at = node + _NODE_BYTES
        self._within(key_at + key_bytes, end)
        return _Nodes(end, key_at, key_bytes, (self._u16(node), self._u16(node + 2), self._u16(node + 4)))

    def _values(self, nodes: _Nodes, meta: _Meta) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes of the values, int64[nodes] each."""
        low, high, flags = nodes.words
        if (flags & _SUB_OR_TWICE).any():
            raise self._unsupported("one database in the file, got several, or several values per key")
        starts, sizes = nodes.key_at + nodes.key_bytes, low | high << 16
        big = flags & _BIG != 0
        self._within(starts + np.where(big, 8, sizes), nodes.end)
        at = starts[big]
        numbers = np.zeros(len(at), np.uint64)
        for byte in range(8):
            numbers |= self._raw[at + byte].astype(np.uint64) << np.uint64(8 * byte)
        pages = self._pages(numbers, meta)
        if (self._u16(pages + 10) & _KINDS != _OVERFLOW).any():
            self.fail(0, "pages of large values where nodes refer to them", "pages of another kind")
        room = (self._u16(pages + 12) | self._u16(pages + 14) << 16) * meta.page_bytes - _HEAD_BYTES
        starts[big] = pages + _HEAD_BYTES
        if (sizes[big] > room).any() or (starts + sizes > len(self._data)).any():
            self.fail(0, "values within their pages", "values that reach beyond them")
        return starts, sizes

    def _within(
        self, ends: NDArray[np.int64], limits: NDArray[np.int64], also: NDArray[np.bool_] | None = None
    ) -> None:
        wrong = ends > limits
        if (wrong if also is None else wrong | also).any():
            self.fail(0, "nodes within their page", "a node that reaches beyond it")

    def _u16(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._raw[at].astype(np.int64) | self._raw[at + 1].astype(np.int64) << 8

    def _about(self, nodes: _Nodes) -> NDArray[np.bool_]:
        """Return bool[nodes]: which entries describe the others."""
        found = np.zeros(len(nodes.end), np.bool_)
        for key in _ABOUT:
            same = np.flatnonzero(nodes.key_bytes == len(key))
            for place, byte in enumerate(key):
                same = same[self._raw[nodes.key_at[same] + place] == byte]
            found[same] = True
        return found

    def _refuse_pickles(self, start: int, size: int) -> None:
        value = self._data[start : start + min(size, _PICKLE_BYTES_MAX)]
        if _PICKLE.fullmatch(value):
            raise self._unsupported("values that describe themselves, got pickles, which feedd never opens")

    def _index(
        self,
        key_at: NDArray[np.int64],
        key_bytes: NDArray[np.int64],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> ShardIndex:
        ends = np.cumsum(key_bytes)
        total = int(ends[-1]) if len(ends) else 0
        if total > _KEY_BYTES_MAX:
            self.fail(0, f"at most {_KEY_BYTES_MAX} bytes of keys", str(total))
        blob = self._raw[np.repeat(key_at - ends + key_bytes, key_bytes) + np.arange(total)].tobytes()
        keys = blob, ends
        if not blob.isascii():
            return NumberedIndex((FIELD,), starts[None], sizes[None], len(ends))
        if len(ends) and _NAMED.fullmatch(blob[: int(ends[0])]):
            named = self._named(blob, ends.tolist(), starts, sizes)
            if named is not None:
                return named
        return ShardIndex((FIELD,), starts[None], sizes[None], *keys)

    def _named(
        self, blob: bytes, ends: list[int], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> ShardIndex | None:
        """Return an index of several fields if every key names a field; otherwise None."""
        names: dict[bytes, int] = {}
        numbers: dict[bytes, int] = {}
        cells: list[tuple[int, int]] = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            match = _NAMED.fullmatch(blob, start, end)
            if match is None:
                return None
            name, number = match.groups()
            cells.append((names.setdefault(name, len(names)), numbers.setdefault(number, len(numbers))))
        if len(names) == 1:
            return None
        self.check_cells(len(names), len(numbers), key_bytes=KEY_BYTES)
        places = np.array(cells, np.intp).T
        table = np.zeros((2, len(names), len(numbers)), np.int64)
        table[1] = -1
        table[0][tuple(places)], table[1][tuple(places)] = starts, sizes
        lengths = np.fromiter(map(len, numbers), np.int64, len(numbers))
        fields = field_names([name.decode() for name in names], self._url)
        return ShardIndex(fields, table[0], table[1], b"".join(numbers), np.cumsum(lengths))

    def _unsupported(self, what: str) -> Unsupported:
        hint = "write values as the bytes of files: JPEG, .npy, text"
        return Unsupported(f"expected {what}", object=self._url, hint=hint, stage="decode")


FORMATS: Final = (FormatSpec(LmdbFormat(), (".lmdb", ".mdb")),)
