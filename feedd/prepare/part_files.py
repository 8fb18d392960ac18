"""Counts of parts of a dataset, each in an object of its own until one run merges them.

Thousands of jobs cannot all add to one index: each would read and write the counts of all others. So ``--part I/N``
writes ``_feedd_manifest/part-0000I-of-0000N.json``, which has the layout of an index. Rows tell the version of the
object that was counted, so such a file stays true for as long as it exists.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.access import FILE_ROOT
from feedd.dataset.index_file import MANIFEST_FOLDER
from feedd.dataset.shard_part import ShardPart
from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.pages import closing_pages
from feedd.flow.pools import LOCAL_FILES
from feedd.flow.tasks import run_all
from feedd.prepare.index_writer import IndexTarget

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from feedd.catalog.sources import Sources
    from feedd.dataset.index_file import Row

_READS_AT_ONCE: Final = 16
_NAME: Final = re.compile(r"part-(\d{5})-of-(\d{5})\.json")


class PartFiles:
    """The files of a folder's parts.

    Args:
        sources: reads and writes them.
        root: the folder's store.
        folder: key of the folder, with a slash at its end unless it is the bucket itself.
    """

    def __init__(self, sources: Sources, root: str, folder: str) -> None:
        self._sources = sources
        self._root = root
        self._start = folder + MANIFEST_FOLDER

    def target(self, part: ShardPart) -> IndexTarget:
        """Return the file of a part, to read and write; ``make_folder`` must precede the first write."""
        slash = "" if self._root == FILE_ROOT else "/"
        name = f"part-{part.index:05d}-of-{part.count:05d}.json"
        return IndexTarget(self._sources, f"{self._root}{slash}{self._start}{name}")

    async def make_folder(self) -> None:
        """Make the folder of the files, if it is a local one."""
        if self._root == FILE_ROOT:
            await LOCAL_FILES.run(Path(self._start).mkdir, exist_ok=True)

    async def read(self, parts: Sequence[ShardPart]) -> AsyncGenerator[tuple[ShardPart, list[Row]], None]:
        """Yield each part with its counts: an empty list if there are none, or the file is damaged or being replaced.

        Raises:
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        for first in range(0, len(parts), _READS_AT_ONCE):
            some = parts[first : first + _READS_AT_ONCE]
            for part, rows in zip(some, await run_all(map(self._rows, some)), strict=True):
                yield part, rows

    async def present(self) -> list[ShardPart]:
        """Return the parts that have a file, of all numbers of parts, in order.

        Raises:
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        found = []
        try:
            async with closing_pages(self._sources.store(self._root).list(f"{self._start}part-")) as pages:
                async for page in pages:
                    names = (_NAME.fullmatch(ref.key[len(self._start) :]) for ref in page)
                    found += [ShardPart(int(name[1]), int(name[2])) for name in names if name is not None]
        except NotFound:
            return []
        return found

    async def _rows(self, part: ShardPart) -> list[Row]:
        try:
            return await self.target(part).read()
        except (ValueError, ObjectChanged):
            return []
