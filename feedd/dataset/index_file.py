"""Sample counts known in advance: the index object beside the data.

``_feedd_index.json`` in a folder names the shards below it, with size and ETag at the time of counting. A row is used
only if the object still has that size and ETag. JSON, in columns:

    {"version": 1, "key": ["a.tar", ...], "size_bytes": [...], "etag": [...], "sample_count": [...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from feedd.dataset.json_pieces import elements, find, value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from feedd.dataset.json_pieces import Octets
    from feedd.values import ObjectRef

INDEX_NAME = "_feedd_index.json"
MANIFEST_FOLDER = "_feedd_manifest/"
"""Folder of a dataset's frozen manifests, beside the data; each version is an object (``dataset.frozen_manifest``)."""

INDEX_BYTES_MAX = 1 << 30  # about five million shards
VERSION = 1
SAMPLES_MAX = 1 << 40  # of one shard; larger numbers are not counts


class _File(msgspec.Struct, forbid_unknown_fields=False):
    version: int
    key: list[str]
    size_bytes: list[int]
    etag: list[str]
    sample_count: list[int]


@dataclass(frozen=True, slots=True)
class Row:
    """One shard, as it was counted.

    Attributes:
        key: key relative to the index's folder.
    """

    key: str
    size_bytes: int
    etag: str
    sample_count: int


def is_index(key: str) -> bool:
    """Whether an object is an index, or a temporary file of one, and so no shard."""
    name = key.rpartition("/")[2]
    return name == INDEX_NAME or (name.startswith(f"{INDEX_NAME}.") and name.endswith(".new"))


def is_manifest(key: str) -> bool:
    """Whether an object is in a folder of frozen manifests, and so no shard."""
    return MANIFEST_FOLDER in key and f"/{key}".rpartition("/")[0].endswith(f"/{MANIFEST_FOLDER[:-1]}")


def folder_of(key: str) -> str:
    """Return the folder of a key, with its slash; empty: the bucket itself."""
    return key[: key.rfind("/") + 1]


def render(rows: Iterable[Row]) -> bytes:
    """Return the content of the file, its rows ordered by key."""
    ordered = sorted(rows, key=lambda row: row.key)
    return msgspec.json.encode(
        _File(
            VERSION,
            [row.key for row in ordered],
            [row.size_bytes for row in ordered],
            [row.etag for row in ordered],
            [row.sample_count for row in ordered],
        )
    )


def rows_of(data: Octets) -> Iterator[Row]:
    """Yield the rows of a file, piece by piece; its content is not trusted.

    Raises:
        ValueError: the file is no index; the message says what is wrong. The rows before it must be discarded.
    """
    places = find(data, ("version", "key", "size_bytes", "etag", "sample_count"))
    version = value(data, places["version"], int)
    if version != VERSION:
        raise ValueError(f"expected an index of version {VERSION}, got {version}")
    columns = (
        elements(data, places["key"], str),
        elements(data, places["size_bytes"], int),
        elements(data, places["etag"], str),
        elements(data, places["sample_count"], int),
    )
    for key, size_bytes, etag, count in zip_longest(*columns):
        if key is None or size_bytes is None or etag is None or count is None:
            raise ValueError("expected columns of one length, got different lengths")
        if not 0 <= count < SAMPLES_MAX:
            raise ValueError(f"expected counts of samples, got {count}")
        yield Row(key, size_bytes, etag, count)


def parse(data: Octets) -> list[Row]:
    """Return all rows of a file; raises what ``rows_of`` raises."""
    return list(rows_of(data))


def merged(ours: Mapping[str, Row], there: Iterable[Row], stale: Collection[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that an index must hold, by key, and those of them that another run has added.

    Args:
        ours: rows of this run, by key.
        there: rows of the index now.
        stale: earlier rows of the index for objects that this run did not list.
    """
    news = {row.key: row for row in there if ours.get(row.key) != row and row not in stale}
    return sorted({**ours, **news}.values(), key=lambda row: row.key), list(news.values())


def known(refs: Sequence[ObjectRef], indexes: Mapping[tuple[str, str], Iterable[Row]]) -> dict[int, int]:
    """Return the sample counts of the shards that have not changed.

    Args:
        refs: the dataset's shards.
        indexes: rows by (root, folder) of their index.

    Returns:
        Counts by index into ``refs``.
    """
    rows = {
        (root, folder + row.key, row.size_bytes, row.etag): row.sample_count
        for (root, folder), its in indexes.items()
        for row in its
    }
    found = ((number, rows.get((ref.root, ref.key, ref.size_bytes, ref.etag))) for number, ref in enumerate(refs))
    return {number: count for number, count in found if count is not None}
