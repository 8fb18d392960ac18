"""Lines as samples: text, and JSON Lines.

A line ends with LF or CR LF; the last line may end with the file. Blank lines are not samples. A byte order mark in
front of the first line is skipped.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_spec import AmongSamples, FormatSpec, cut_at
from feedd.formats.refused import refuse_packed
from feedd.shard_index import ShardIndex, numbered

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_BYTES: Final = 8 << 20
_LINES_MAX: Final = 1 << 26
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

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the lines; a key is the sample's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: too many lines, or a compressed file.
        """
        refuse_packed(data, url, self._name)
        starts, sizes = _lines(data)
        if len(starts) > _LINES_MAX:
            raise BadShard(f"expected at most {_LINES_MAX} lines, got {len(starts)}", object=url, stage="decode")
        return ShardIndex(
            (self._field,), starts[None], sizes[None], *numbered(len(starts)), encodings=(self._encoding,)
        )


def _lines(data: memoryview) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and size of each line that is not blank, without its line end; int64[lines] each."""
    raw = np.frombuffer(data, np.uint8)
    found = [
        np.flatnonzero(raw[at : at + _PIECE_BYTES] == _LF) + at for at in range(0, len(raw), _PIECE_BYTES)
    ]  # in pieces, because one comparison would take as much memory as the shard
    feeds = np.concatenate([*found, np.array([len(raw)] if len(raw) and raw[-1] != _LF else [], np.int64)])
    first = len(BOM_UTF8) if bytes(data[: len(BOM_UTF8)]) == BOM_UTF8 else 0
    starts = np.concatenate(([first], feeds[:-1] + 1)) if len(feeds) else feeds
    ends = feeds.copy()
    returned = (ends > starts) & (raw[np.maximum(ends - 1, 0)] == _CR) if len(raw) else ends > starts
    ends[returned] -= 1
    kept = ends > starts
    return starts[kept], (ends - starts)[kept]


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
    ),
    FormatSpec(
        LinesFormat("jsonl", "json", "json"),
        (".jsonl", ".ndjson"),
        begins=_begins,
        sniff_rank=9,
        first_samples=cut_at(lines_end),
        among_samples=AmongSamples.IGNORED,
    ),
)
