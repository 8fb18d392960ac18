"""Sample counts learned while shards were read, kept in the cache's directory for the next start.

After a restart, a continued run need not read the shards that it has passed. These counts never decide whether ranks
have equal steps, because other nodes have learned other counts.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from feedd.errors import FeeddError
from feedd.fetch.local_store import write_file
from feedd.tables.registry import counts_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from feedd.values import ObjectRef

_FILE_BYTES_MAX = 256 << 20
_ROWS_MAX = 1_000_000  # the most recently learned counts
_Row = tuple[str, str, int, int]  # URL, ETag, bytes, samples


class Learned:
    """Counts by object. Synchronous; ``load`` and ``save`` block.

    Args:
        path: the file; a missing or foreign file counts as empty. None: counts are kept in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[tuple[str, str, int], int] = {}
        self._changed = False

    def __repr__(self) -> str:
        return f"Learned({len(self._counts)} shards)"

    def note(self, ref: ObjectRef, sample_count: int, reader: str = "") -> None:
        """Record an object's number of samples; another format would read other samples from the same bytes."""
        if counts_apart(ref.conversion):
            return  # its count holds only for this conversion's sessions
        key = (ref.url, _version(ref, reader), ref.size_bytes)
        if self._counts.get(key) != sample_count:
            self._counts[key] = sample_count
            self._changed = True
            if len(self._counts) > _ROWS_MAX:
                del self._counts[next(iter(self._counts))]

    def known(self, refs: Sequence[ObjectRef], reader_of: Callable[[int], str] = lambda _: "") -> dict[int, int]:
        """Return the known counts of the objects, by index into ``refs``.

        Args:
            refs: the objects.
            reader_of: returns the format named for an object; empty: its name decides.
        """
        if not self._counts:
            return {}
        keys = ((ref.url, _version(ref, reader_of(number)), ref.size_bytes) for number, ref in enumerate(refs))
        found = ((number, self._counts.get(key)) for number, key in enumerate(keys))
        return {number: count for number, count in found if count is not None}

    def load(self) -> None:
        """Read the file."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if self._path.stat().st_size <= _FILE_BYTES_MAX:
                rows = msgspec.json.decode(self._path.read_bytes(), type=list[_Row])
                self._counts.update(((url, etag, size), count) for url, etag, size, count in rows if count >= 0)

    def save(self) -> None:
        """Write the file if something was learned; errors of the directory are ignored."""
        if not self._changed or self._path is None:
            return
        rows = [(*key, count) for key, count in self._counts.items()]
        with contextlib.suppress(FeeddError):
            write_file(str(self._path), msgspec.json.encode(rows))
            self._changed = False


def _version(ref: ObjectRef, reader: str) -> str:
    """Return an object's version and how it is read; columns do not matter, because all have as many rows."""
    converter = "" if ref.conversion is None else ref.conversion.name
    return f"{ref.etag}\0{converter}\0{reader}" if converter or reader else ref.etag
