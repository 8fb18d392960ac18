"""Packs of objects that are samples, or files of samples: see ``dataset.pack_layout``.

A sample's key is the common name of its objects, below the folder of the dataset's URL and without extension. Its
fields are the extensions, in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.dataset.object_names import split_name
from feedd.dataset.pack_layout import parse
from feedd.formats.format_spec import FormatSpec
from feedd.formats.framing import ShardReader
from feedd.shard_index import ShardIndex

if TYPE_CHECKING:
    from feedd.dataset.pack_layout import Table

_CELLS_MAX: Final = 1 << 24


class FilesFormat:
    """``protocols.ShardFormat`` of packs; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``files``."""
        return "files"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the samples' objects.

        Args:
            data: the whole pack, borrowed for the call.
            url: URL of the pack, for errors.

        Raises:
            BadShard: not a pack, or its table does not fit.
        """
        return _Reader(data, url).read()


class _Reader(ShardReader):
    """Reads the table of one pack."""

    def read(self) -> ShardIndex:
        """Return the index that the table describes."""
        try:
            return index_of(parse(self._data))
        except (ValueError, UnicodeDecodeError) as error:
            self.fail(0, "the table of a pack", str(error))


def index_of(table: Table) -> ShardIndex:
    """Return the index of the samples' objects.

    Raises:
        ValueError: too many cells, or a sample has an extension twice; the message is one line.
    """
    names = [split_name(name) for name in table.names()]
    columns: dict[str, int] = {}
    column = np.array([columns.setdefault(extension, len(columns)) for _, extension in names], np.intp)
    samples = int(table.sample[-1]) + 1 if names else 0
    if len(columns) * samples > _CELLS_MAX:
        raise ValueError(f"expected at most {_CELLS_MAX} cells, got {len(columns)} extensions x {samples} samples")
    if len(np.unique(column * max(samples, 1) + table.sample)) < len(names):
        raise ValueError("expected each extension once per sample, got one twice")
    starts = np.zeros((len(columns), samples), np.int64)
    sizes = np.full((len(columns), samples), -1, np.int64)
    cell = (column, table.sample)
    starts[cell], sizes[cell] = table.starts()[:-1], table.sizes
    lost = list(table.lost)
    sizes[column[lost], table.sample[lost]] = -1
    first = np.flatnonzero(np.diff(table.sample, prepend=-1)).tolist()
    keys = [names[number][0].encode("utf-8", "surrogatepass") for number in first]
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
    return ShardIndex(tuple(columns), starts, sizes, b"".join(keys), ends)


FORMATS: Final = (FormatSpec(FilesFormat()),)
