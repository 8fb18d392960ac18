"""Sample counts learned while shards were read, kept in the cache's directory for the next start.

They spare a run that goes on after a restart the reading of shards it is past. Whether ranks have equal steps is never
decided by them: another node has learned others.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from feedd.convert.conversion_registry import counts_apart
from feedd.errors import FeeddError
from feedd.fetch.local_store import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from feedd.values import ObjectRef

_FILE_BYTES_MAX = 256 << 20
_ROWS_MAX = 1_000_000  # the last learned ones
_Row = tuple[str, str, int, int]  # URL, ETag, bytes, samples


class Learned:
    """Counts by object. Synchronous; ``load`` and ``save`` block.

    Args:
        path: the file; one that is not there, or is not ours, is nothing known. None: nothing is kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[tuple[str, str, int], int] = {}
        self._changed = False

    def __repr__(self) -> str:
        return f"Learned({len(self._counts)} shards)"

    def note(self, ref: ObjectRef, sample_count: int, reader: str = "") -> None:
        """Take note of what an object holds, as it is read: the same bytes by another format are other samples."""
        if counts_apart(ref.form):
            return  # what of it nobody else may read
        key = (ref.url, _version(ref, reader), ref.size_bytes)
        if self._counts.get(key) != sample_count:
            self._counts[key] = sample_count
            self._changed = True
            if len(self._counts) > _ROWS_MAX:
                del self._counts[next(iter(self._counts))]

    def known(self, refs: Sequence[ObjectRef], reader_of: Callable[[int], str] = lambda _: "") -> dict[int, int]:
        """Return the counts of the objects that are known, by index into ``refs``.

        Args:
            refs: the objects.
            reader_of: the format that somebody named for one of them; empty: its name tells it.
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
        """Write the file where something was learned; a directory that cannot be written is nobody's trouble."""
        if not self._changed or self._path is None:
            return
        rows = [(*key, count) for key, count in self._counts.items()]
        with contextlib.suppress(FeeddError):
            write_file(str(self._path), msgspec.json.encode(rows))
            self._changed = False


def _version(ref: ObjectRef, reader: str) -> str:
    """Return an object's version and how it is read; columns do not matter, where each has as many rows."""
    form = ref.form.partition(":")[0]
    return f"{ref.etag}\0{form}\0{reader}" if form or reader else ref.etag
