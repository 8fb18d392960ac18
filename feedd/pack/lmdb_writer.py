"""Writes LMDB data files, from front to back, without LMDB's library: equal samples give equal bytes.

The layout is described in ``formats.lmdb``. Samples of one object have their key as the entry's key. Objects of other
samples have keys such as ``jpg-000000007``, with the number of the sample; ``key-000000007`` holds the sample's key,
and ``num-samples`` the number of samples.

Pages 0 and 1 hold the meta records. Then come the pages of large values, the leaves, and the branches above them.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadSample, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Piece

_PAGE: Final = 4096
_HEAD: Final = struct.Struct("<QHHHH")
_BIG_HEAD: Final = struct.Struct("<QHHI")
_NODE: Final = struct.Struct("<HHHH")
_TREE: Final = struct.Struct("<IHHQQQQQ")
_META: Final = struct.Struct("<IIQQ")
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 0x01, 0x02, 0x04, 0x08
_BIG: Final = 0x01
_NODE_BYTES_MAX: Final = 2038  # LMDB's own: two nodes fit on a page
_KEY_BYTES_MAX: Final = 511
_KEY_BYTES: Final = 16  # of a key, about
_NO_PAGE: Final = (1 << 64) - 1
_KEY: Final = "key"
_COUNT: Final = b"num-samples"
_NAMED: Final = re.compile(r"[a-z][a-z_]*")


class LmdbWriter:
    """``ShardWriter`` of LMDB."""

    name = "lmdb"
    extension = "lmdb"

    def check(self, fields: Fields) -> None:
        """Check that names of several fields can be parts of keys."""
        wrong = [name for name in fields.counts if not _NAMED.fullmatch(name) or name == _KEY]
        if len(fields.counts) > 1 and wrong:
            raise Unsupported(
                f"expected extensions of letters, got {', '.join(wrong)}",
                hint="write them in another format, such as tar",
                stage="pack",
            )

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of values in leaves, or in pages of their own."""
        pages = (sizes + 16 + _PAGE - 1) // _PAGE * _PAGE
        return np.where(sizes + _NODE.size + _KEY_BYTES > _NODE_BYTES_MAX, pages, sizes + _NODE.size + _KEY_BYTES)

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:
        """Yield the pages.

        Raises:
            BadSample: a key is too long, or two samples have one key.
        """
        return _Tree(_entries(samples, fields)).pieces()

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:  # noqa: ARG002 - the seam's
        """Return nothing."""
        return {}


def _entries(samples: Iterable[PackedSample], fields: Fields) -> list[tuple[bytes, Piece]]:
    """Return keys and values, in the order of keys."""
    found: list[tuple[bytes, Piece]] = []
    count = 0
    for number, sample in enumerate(samples):
        count = number + 1
        key = sample.key.encode("utf-8", "surrogateescape")
        if len(fields.counts) == 1:
            found.append((key, sample.parts[0].data))
            if len(key) > _KEY_BYTES_MAX:
                message = f"expected a key of at most {_KEY_BYTES_MAX} bytes, got {len(key)}"
                raise BadSample(message, object=sample.key, stage="pack")
            continue
        found.append((b"%s-%09d" % (_KEY.encode(), number), key))
        found += [(b"%s-%09d" % (part.extension.encode(), number), part.data) for part in sample.parts]
    if len(fields.counts) > 1:
        found.append((_COUNT, b"%d" % count))
    found.sort(key=lambda one: one[0])
    for (one, _), (two, _) in itertools.pairwise(found):
        if one == two:
            message = "expected a key once in a shard, got it twice"
            raise BadSample(message, object=one.decode("utf-8", "replace"), stage="pack")
    return found


@dataclass(slots=True)
class _Page:
    """A page of nodes that is being filled."""

    first: bytes
    nodes: list[bytes]
    size_bytes: int = _HEAD.size


class _Tree:
    """A tree over all entries of a shard."""

    def __init__(self, entries: Sequence[tuple[bytes, Piece]]) -> None:
        self._entries = entries
        self._next = 2
        self._large_pages = 0

    def pieces(self) -> Iterator[Piece]:
        """Yield the pages, from the first to the last."""
        nodes: list[tuple[bytes, bytes]] = []
        large: list[tuple[int, int, Piece]] = []
        for key, value in self._entries:
            size = len(value)
            head = _NODE.pack(size & 0xFFFF, size >> 16, 0, len(key))
            if _NODE.size + len(key) + size <= _NODE_BYTES_MAX:
                nodes.append((key, head + key + bytes(value)))
                continue
            count = (size + 16 + _PAGE - 1) // _PAGE
            head = _NODE.pack(size & 0xFFFF, size >> 16, _BIG, len(key))
            nodes.append((key, head + key + self._next.to_bytes(8, "little")))
            large.append((self._next, count, value))
            self._next += count
            self._large_pages += count
        levels = self._levels(nodes)
        yield from self._metas(levels)
        for number, count, value in large:
            yield _BIG_HEAD.pack(number, 0, _OVERFLOW, count)
            yield value
            yield bytes(count * _PAGE - 16 - len(value))
        for kind, level in levels:
            for number, page in level:
                yield _rendered(number, kind, page.nodes)

    def _levels(self, nodes: list[tuple[bytes, bytes]]) -> list[tuple[int, list[tuple[int, _Page]]]]:
        """Return the leaves, and each level of branches above them, with the numbers of all pages."""
        levels: list[tuple[int, list[tuple[int, _Page]]]] = []
        kind = _LEAF
        while nodes:
            pages = _filled(nodes)
            level = [(self._next + number, page) for number, page in enumerate(pages)]
            levels.append((kind, level))
            self._next += len(pages)
            if len(pages) == 1:
                break
            kind = _BRANCH
            nodes = [(page.first, _branch_node(number, page.first)) for number, page in level]
        return levels

    def _metas(self, levels: Sequence[tuple[int, list[tuple[int, _Page]]]]) -> Iterator[bytes]:
        """Yield two meta pages; the second one counts."""
        free = _TREE.pack(_PAGE, 0, 0, 0, 0, 0, 0, _NO_PAGE)
        leaves = len(levels[0][1]) if levels else 0
        branches = sum(len(level) for _, level in levels[1:])
        root = levels[-1][1][0][0] if levels else _NO_PAGE
        main = _TREE.pack(0, 0, len(levels), branches, leaves, self._large_pages, len(self._entries), root)
        for number in range(2):
            head = _HEAD.pack(number, 0, _META_PAGE, 0, 0)
            meta = _META.pack(_MAGIC, _VERSION, 0, self._next * _PAGE)
            ends = struct.pack("<QQ", self._next - 1, number)
            yield (head + meta + free + main + ends).ljust(_PAGE, b"\0")


def _filled(nodes: Sequence[tuple[bytes, bytes]]) -> list[_Page]:
    """Return nodes on as few pages as they need, in order; the first node of a branch may lose its key later."""
    pages: list[_Page] = []
    for key, node in nodes:
        size = 2 + len(node) + len(node) % 2
        if not pages or pages[-1].size_bytes + size > _PAGE:
            pages.append(_Page(key, []))
        pages[-1].nodes.append(node)
        pages[-1].size_bytes += size
    return pages


def _branch_node(number: int, key: bytes) -> bytes:
    return _NODE.pack(number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32, len(key)) + key


def _rendered(number: int, kind: int, nodes: Sequence[bytes]) -> bytes:
    """Return a page: offsets of its nodes in front, nodes from its end on."""
    if kind == _BRANCH:  # the key of the first child is never compared
        nodes = [nodes[0][:6] + b"\0\0", *nodes[1:]]
    page = bytearray(_PAGE)
    upper, offsets = _PAGE, []
    for node in nodes:
        upper -= len(node) + len(node) % 2
        page[upper : upper + len(node)] = node
        offsets.append(upper)
    lower = _HEAD.size + 2 * len(nodes)
    page[: _HEAD.size] = _HEAD.pack(number, 0, kind, lower, upper)
    page[_HEAD.size : lower] = struct.pack(f"<{len(offsets)}H", *offsets)
    return bytes(page)
