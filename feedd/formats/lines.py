"""Lines as samples: text, and JSON Lines.

A line ends with LF or CR LF; the last line may end with the file. Blank lines are not samples. A byte order mark in
front of the first line is skipped.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.formats.format_spec import AmongSamples, FormatSpec, cut_at
from feedd.formats.framing import ShardErrors
from feedd.formats.refused import refuse_packed
from feedd.shard_index import NumberedIndex, RegularIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.formats.format_spec import ShardBytes

_PIECE_BYTES: Final = 1 << 20
_LOOK_BYTES: Final = 512
_LF, _CR = 10, 13


class LinesFormat:
    """``protocols.ShardFormat`` of files whose lines are samples of one field; stateless.

    Args:
        name: name of the format.
        field: name of the only field.
        stored: encoding of the field, see ``recipe.encodings``.
    """

    def __init__(self, name: str, field: str, stored: str) -> None:
        self._name, self._field, self._encoding = name, field, stored

    @property
    def name(self) -> str:
        """Name of the format in the registry."""
        return self._name

    def index(self, data: ShardBytes, url: str) -> ShardIndex:
        """Return the index of the lines; a key is the sample's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: too many lines, or a compressed file.
        """
        refuse_packed(memoryview(data[:_LOOK_BYTES]), url, self._name)
        lines = _Lines(url)
        for at in range(0, len(data), _PIECE_BYTES):
            lines.add(np.frombuffer(data[at : at + _PIECE_BYTES], np.uint8), at)
        lines.end(len(data))
        return lines.index(self._field, self._encoding)


class _Lines(ShardErrors):
    """The lines of one shard, found piece by piece.

    As long as all lines have one length and one distance, only these are kept.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._begin = 0  # of the line that is not over yet
        self._last = 0  # the byte before the next piece
        self._count = 0
        self._found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._stride: tuple[int, int, int] | None = None  # of all lines so far: first start, distance, size
        self._is_regular = True

    def add(self, raw: NDArray[np.uint8], at: int) -> None:
        """Add the lines that end in the next bytes; ``at``: where these begin."""
        if not at and raw[: len(BOM_UTF8)].tobytes() == BOM_UTF8:
            self._begin = len(BOM_UTF8)
        feeds = np.flatnonzero(raw == _LF)
        if len(feeds):
            before = raw[feeds - 1]
            before[0] = raw[feeds[0] - 1] if feeds[0] else self._last
            ends = feeds + at
            starts = np.empty(len(ends), np.int64)
            starts[0], starts[1:] = self._begin, ends[:-1] + 1
            self._begin = int(ends[-1]) + 1
            self._keep(starts, ends - starts - (before == _CR))
        if len(raw):
            self._last = int(raw[-1])

    def end(self, size_bytes: int) -> None:
        """Add the line that ends with the file of ``size_bytes``."""
        if self._begin < size_bytes:
            size = size_bytes - self._begin - (self._last == _CR)
            self._keep(np.array([self._begin], np.int64), np.array([size], np.int64))

    def index(self, field: str, encoding: str) -> ShardIndex:
        """Return the index."""
        if self._is_regular and self._stride is not None:
            return RegularIndex((field,), (self._stride,), self._count, (encoding,))
        starts, sizes = np.empty((1, self._count), np.int64), np.empty((1, self._count), np.int64)
        at = self._count
        while self._found:
            piece = self._found.pop()
            at -= len(piece[0])
            starts[0, at : at + len(piece[0])], sizes[0, at : at + len(piece[0])] = piece
        return NumberedIndex((field,), starts, sizes, self._count, encodings=(encoding,))

    def _keep(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        kept = sizes > 0
        if not kept.all():
            starts, sizes = starts[kept], sizes[kept]
        if not len(starts):
            return
        count = self._count + len(starts)
        if self._is_regular and not self._continues(starts, sizes):
            self._is_regular = False
            if self._stride is not None:
                self.check_cells(1, count)
                first, step, size = self._stride
                earlier = first + step * np.arange(self._count, dtype=np.int64)
                self._found.append((earlier, np.full(self._count, size, np.int64)))
        self.check_cells(1, count, column_count=int(not self._is_regular))
        if not self._is_regular:
            self._found.append((starts, sizes))
        self._count = count

    def _continues(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Whether these lines have the length and the distance of those before; take both from the first lines."""
        if self._stride is None:
            step = int(starts[1] - starts[0]) if len(starts) > 1 else int(sizes[0]) + 1
            self._stride = int(starts[0]), step, int(sizes[0])
        first, step, size = self._stride
        if int(starts[0]) != first + step * self._count or not (sizes == size).all():
            return False
        return bool((starts[1:] - starts[:-1] == step).all())


def lines_end(data: memoryview) -> int:
    """Return where the last whole line ends of a file's first bytes; 0: none is whole."""
    feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == _LF)
    return int(feeds[-1]) + 1 if len(feeds) else 0


def _begins(data: memoryview) -> bool:
    return bytes(data[:_LOOK_BYTES]).lstrip()[:2] in {b'{"', b"[{", b"{}"}


FORMATS: Final = (
    FormatSpec(
        LinesFormat("text", "text", "text"),
        (".txt",),
        first_samples=cut_at(lines_end),
        among_samples=AmongSamples.COMPANION,
        reads_headers=True,
    ),
    FormatSpec(
        LinesFormat("jsonl", "json", "json"),
        (".jsonl", ".ndjson"),
        begins=_begins,
        sniff_rank=9,
        first_samples=cut_at(lines_end),
        among_samples=AmongSamples.IGNORED,
        reads_headers=True,
    ),
)
