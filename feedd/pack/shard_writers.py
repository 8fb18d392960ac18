"""The formats that shards are written in."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Final

from feedd.errors import BadRequest
from feedd.pack.lmdb_writer import LmdbWriter
from feedd.pack.mds_writer import MdsWriter
from feedd.pack.parquet_writer import ParquetWriter
from feedd.pack.recordio_writer import RecordIoWriter
from feedd.pack.tar_writer import TarWriter
from feedd.pack.tfrecord_writer import TfRecordWriter

if TYPE_CHECKING:
    from feedd.pack.pack_options import PackOptions
    from feedd.pack.packed_sample import ShardWriter

_ALL: Final[tuple[ShardWriter, ...]] = (
    TarWriter(),
    TfRecordWriter(),
    RecordIoWriter(),
    MdsWriter(),
    ParquetWriter(),
    LmdbWriter(),
)
_WRITERS: Final = {writer.name: writer for writer in _ALL}
FORMATS: Final = tuple(_WRITERS)
"""Names of all formats."""

_RESIZING: Final = ("simplejpeg", "opencv-python-headless")


def writer_of(name: str) -> ShardWriter:
    """Return the writer of a format.

    Raises:
        BadRequest: the format is unknown.
    """
    writer = _WRITERS.get(name)
    if writer is None:
        raise BadRequest(f"expected a format of {', '.join(FORMATS)}, got {name!r}", stage="pack")
    return writer


def library_versions(options: PackOptions) -> dict[str, str]:
    """Return the versions of the libraries that decide the bytes of the shards."""
    names = _RESIZING if options.resize is not None else ()
    if options.format == "parquet":
        names = (*names, "pyarrow")
    return {name: importlib.metadata.version(name) for name in names}
