"""Writes MDS, version 2, uncompressed, with ``index.json``: each object is a column that is named by its extension.

A shard is ``u32 n, u32 offset[n + 1], JSON, samples``; see ``formats.mds``. ``index.json`` holds the SHA-256 of each
shard, which mosaicml-streaming verifies if ``validate_hash="sha256"``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.errors import BadSample, Unsupported
from feedd.pack.packed_sample import JSONS, KEY, NUMBERS, TEXTS, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Piece

_INDEX: Final = "index.json"
_ENCODINGS: Final = {
    **dict.fromkeys(NUMBERS, "int"),
    **dict.fromkeys(TEXTS, "str"),
    **dict.fromkeys(JSONS, "json"),
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "png": "png",
    KEY: "str",
}
_INT_BYTES: Final = 8
_SHARD_BYTES_MAX: Final = (1 << 32) - 1


class MdsWriter:
    """``ShardWriter`` of MDS."""

    name = "mds"
    extension = "mds"

    def check(self, fields: Fields) -> None:
        """Check that all samples have the same columns."""
        if lacking := fields.incomplete:
            raise Unsupported(
                f"expected every sample to have an object of each extension, got some without {', '.join(lacking)}",
                hint="write them in a format without columns, such as tar",
                stage="pack",
            )

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes unchanged: the framing is small."""
        return sizes

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:
        """Yield the offsets, the header and the samples.

        Raises:
            BadSample: a number is no whole number of 64 bits, or the shard is too large.
        """
        names = _columns(fields)
        sized = [_encoding(name) != "int" for name in names]
        header = json.dumps(_header(fields), sort_keys=True).encode()
        rows = [_row(sample, names) for sample in samples]
        sizes = [sum(map(len, row)) + 4 * sum(sized) for row in rows]
        offsets = np.cumsum([4 * (len(rows) + 2) + len(header), *sizes], dtype=np.int64)
        if offsets[-1] > _SHARD_BYTES_MAX:
            message = f"expected a shard of less than 4 GiB, got {offsets[-1]} bytes"
            raise BadSample(message, hint="choose a smaller --shard-size", stage="pack")
        yield len(rows).to_bytes(4, "little") + offsets.astype("<u4").tobytes() + header
        for row in rows:
            lengths = [len(value) for value, variable in zip(row, sized, strict=True) if variable]
            yield np.array(lengths, "<u4").tobytes()
            yield from row

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:
        """Return ``index.json``."""
        shards = [
            {
                **_header(fields),
                "raw_data": {"basename": name, "bytes": record.size_bytes, "hashes": {"sha256": record.sha256}},
                "zip_data": None,
                "samples": record.samples,
            }
            for name, record in zip(names, records, strict=True)
        ]
        return {_INDEX: json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()}


def _columns(fields: Fields) -> list[str]:
    return sorted([KEY, *fields.counts])


def _encoding(name: str) -> str:
    return _ENCODINGS.get(name, "bytes")


def _header(fields: Fields) -> dict[str, Any]:
    names = _columns(fields)
    encodings = list(map(_encoding, names))
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha256"],
        "size_limit": None,
        "column_names": names,
        "column_encodings": encodings,
        "column_sizes": [_INT_BYTES if one == "int" else None for one in encodings],
    }


def _row(sample: PackedSample, names: Sequence[str]) -> list[Piece]:
    values: dict[str, Piece] = {KEY: sample.key.encode("utf-8", "surrogateescape")}
    for part in sample.parts:
        integer = part.extension in NUMBERS
        values[part.extension] = number_of(part).to_bytes(_INT_BYTES, "little", signed=True) if integer else part.data
    return [values[name] for name in names]
