"""Writes Parquet: each object is a column that is named by its extension; a missing object is a null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from feedd.errors import BadSample, Unsupported
from feedd.pack.packed_sample import JSONS, KEY, NUMBERS, TEXTS, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Part, Piece

_GROUP_BYTES: Final = 16 << 20
_STRINGS: Final = TEXTS | JSONS | {KEY}


class ParquetWriter:
    """``ShardWriter`` of Parquet. Needs pyarrow, whose version decides the bytes of a shard."""

    name = "parquet"
    extension = "parquet"

    def check(self, fields: Fields) -> None:
        """Check that pyarrow is there."""
        if not fields.sample_count:
            return
        try:
            import pyarrow.parquet  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            message = "expected pyarrow to write Parquet, got none"
            raise Unsupported(message, hint="pip install 'feedd[parquet]'", stage="pack") from error

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes unchanged: the framing is small."""
        return sizes

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:
        """Yield the file.

        Raises:
            BadSample: a text is not UTF-8, or a number no whole number of 64 bits.
        """
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

        names = [KEY, *fields.counts]
        rows = [{KEY: sample.key, **{part.extension: _value(part) for part in sample.parts}} for sample in samples]
        schema = pa.schema([(name, _type(pa, name)) for name in names])
        columns = [pa.array([row.get(name) for row in rows], _type(pa, name)) for name in names]
        table = pa.Table.from_arrays(columns, schema=schema)
        out = pa.BufferOutputStream()
        pq.write_table(
            table,
            out,
            row_group_size=max(1, len(rows) * _GROUP_BYTES // max(table.nbytes, 1)),
            compression={name: "ZSTD" if name in _STRINGS | NUMBERS else "NONE" for name in names},
            use_dictionary=False,
            write_statistics=False,
        )
        yield memoryview(out.getvalue())

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:  # noqa: ARG002 - the seam's
        """Return nothing."""
        return {}


def _type(pa: Any, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    return pa.int64() if name in NUMBERS else pa.string() if name in _STRINGS else pa.binary()


def _value(part: Part) -> object:
    if part.extension in NUMBERS:
        return number_of(part)
    if part.extension not in _STRINGS:
        return part.data
    try:
        return bytes(part.data).decode()
    except UnicodeDecodeError as error:
        raise BadSample(f"expected a text of UTF-8, got {error}", object=part.name, stage="pack") from error
