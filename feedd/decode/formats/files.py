"""Packs of objects that are samples, or files of samples: see ``plan.objects.layout``.

The key of a sample is what its objects are called, below the folder of the dataset's URL and without extension; its
fields are their extensions, in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.decode.formats.framing import ShardReader
from feedd.plan.objects.kinds import split_name
from feedd.plan.objects.layout import parse
from feedd.values import ShardIndex

if TYPE_CHECKING:
    from feedd.plan.objects.layout import Table

_FIELDS_MAX: Final = 4096


class FilesFormat:
    """``protocols.ShardFormat`` of packs; stateless."""

    @property
    def name(self) -> str:
        """``files``."""
        return "files"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return where each sample's objects lie.

        Args:
            data: the whole pack, borrowed for the call.
            url: named in errors.

        Raises:
            BadShard: no pack, or one whose table does not fit it.
        """
        return _Reader(data, url).read()


class _Reader(ShardReader):
    """The table of one pack."""

    def read(self) -> ShardIndex:
        """Turn it into columns."""
        try:
            table = parse(self._data)
            names = [split_name(name) for name in table.names()]
        except (ValueError, UnicodeDecodeError) as error:
            self.fail(0, "the table of a pack", str(error))
        return self._index(table, names)

    def _index(self, table: Table, names: list[tuple[str, str]]) -> ShardIndex:
        columns: dict[str, int] = {}
        column = np.array([columns.setdefault(extension, len(columns)) for _, extension in names], np.intp)
        samples = int(table.sample[-1]) + 1 if len(names) else 0
        if len(columns) > _FIELDS_MAX:
            self.fail(0, f"at most {_FIELDS_MAX} different extensions", f"{len(columns)}")
        self.check_cells(len(columns), samples)
        starts = np.zeros((len(columns), samples), np.int64)
        sizes = np.full((len(columns), samples), -1, np.int64)
        cell = (column, table.sample)
        if len(np.unique(column * max(samples, 1) + table.sample)) < len(names):
            self.fail(0, "an extension once in a sample", "one that comes twice")
        starts[cell], sizes[cell] = table.starts()[:-1], table.sizes
        first = np.flatnonzero(np.diff(table.sample, prepend=-1)).tolist()
        keys = [names[number][0].encode("utf-8", "surrogatepass") for number in first]
        ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
        return ShardIndex(tuple(columns), starts, sizes, b"".join(keys), ends)
