"""Remembers rows that killed two workers, so that they kill no more: a row that hangs costs two deadlines each time.

Rows are remembered for an hour, because the real cause may have been a temporary lack of memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.conversion import Conversion
    from feedd.values import FieldRecipe, ShardFile
    from feedd.workers.work import FieldWork

REMEMBERED_S: Final = 3600.0
_ROWS_MAX: Final = 4096

_Spot = tuple[
    str, str, "Conversion | None", tuple[int, ...]
]  # the object's URL, version, conversion, and the starts of the fields


class Poison:
    """Rows that killed workers, by the fields that were requested. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[FieldRecipe, ...], dict[_Spot, tuple[str, float]]] = {}
        self._count = 0

    def add(self, files: Sequence[ShardFile], fields: Sequence[FieldWork], row: int, reason: str) -> None:
        """Remember a row and the reason."""
        if self._count >= _ROWS_MAX:
            self._known.clear()
            self._count = 0
        spots = self._known.setdefault(tuple(work.recipe for work in fields), {})
        spots[_spot(files, fields, row)] = reason, self._clock() + REMEMBERED_S
        self._count += 1

    def concerns(self, files: Sequence[ShardFile]) -> bool:
        """Whether a row of these files is known, or was until recently."""
        if not self._known:
            return False
        urls = {file.ref.url for file in files}
        return any(spot[0] in urls for spots in self._known.values() for spot in spots)

    def rows(self, files: Sequence[ShardFile], fields: Sequence[FieldWork]) -> dict[int, str]:
        """Return known rows with their reasons; a row is known for all its fields, or for one that was measured."""
        found: dict[int, str] = {}
        if not self._known:
            return found
        now_s = self._clock()
        groups = [tuple(fields), *((work,) for work in fields)]
        for group in groups:
            spots = self._known.get(tuple(work.recipe for work in group))
            for row in range(len(group[0].size)) if spots else ():
                reason, until_s = (spots or {}).get(_spot(files, group, row), ("", 0.0))
                if now_s < until_s:
                    found[row] = reason
        return found


def _spot(files: Sequence[ShardFile], fields: Sequence[FieldWork], row: int) -> _Spot:
    """Return a key for a row. It includes all fields, because samples with the same label may start at one place."""
    ref = files[int(fields[0].file_no[row])].ref
    return ref.url, ref.etag, ref.conversion, tuple(int(work.start[row]) for work in fields)
