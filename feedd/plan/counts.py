"""Sample counts known ahead: the index object that lies beside the data.

``_feedd_index.json`` in a folder names shards below it, with what they were when they were counted: a row counts only
for the very object (size and ETag) that is there. JSON, in columns:

    {"version": 1, "key": ["a.tar", ...], "size_bytes": [...], "etag": [...], "sample_count": [...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from feedd.values import ObjectRef

INDEX_NAME = "_feedd_index.json"
INDEX_BYTES_MAX = 1 << 30  # some five million shards
VERSION = 1
SAMPLES_MAX = 1 << 40  # of a shard: more is no count

_T = TypeVar("_T")


class _Columns(msgspec.Struct, forbid_unknown_fields=False):
    version: int
    key: msgspec.Raw
    size_bytes: msgspec.Raw
    etag: msgspec.Raw
    sample_count: msgspec.Raw


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
        key: below the index's folder.
    """

    key: str
    size_bytes: int
    etag: str
    sample_count: int


def is_index(key: str) -> bool:
    """Whether an object is an index, or a file about to become one, and so no shard."""
    name = key.rpartition("/")[2]
    return name == INDEX_NAME or (name.startswith(f"{INDEX_NAME}.") and name.endswith(".new"))


def folder_of(key: str) -> str:
    """Return the folder of a key, with its slash; empty: the bucket."""
    return key[: key.rfind("/") + 1]


def render(rows: Iterable[Row]) -> bytes:
    """Return the file, its rows in order of their keys."""
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


def decoded(data: bytes | msgspec.Raw, kind: type[_T], *, strict: bool = True) -> _T:
    """Return JSON that nobody vouches for.

    Raises:
        ValueError: it is not of that kind; one line.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=strict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected an index, got {error}") from error


def each(raws: Iterable[msgspec.Raw], kind: type[_T]) -> Iterator[_T]:
    """Yield elements of a list of JSON, one after another: all at once is a call that no other thread gets through.

    Raises:
        ValueError: one is not of that kind; one line.
    """
    decoder = msgspec.json.Decoder(kind)
    for raw in raws:
        try:
            yield decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"expected an index, got {error}") from error


def parse(data: bytes) -> list[Row]:
    """Return the rows of a file; nothing in it is trusted.

    Raises:
        ValueError: it is not such a file; says what is wrong with it.
    """
    file = decoded(data, _Columns)  # a column at a time: see ``each``
    if file.version != VERSION:
        raise ValueError(f"expected an index of version {VERSION}, got {file.version}")
    texts = [decoded(column, list[str]) for column in (file.key, file.etag)]
    sizes, counts = (decoded(column, list[int]) for column in (file.size_bytes, file.sample_count))
    columns = (texts[0], sizes, texts[1], counts)
    if len({len(column) for column in columns}) != 1:
        raise ValueError("expected columns of one length, got others")
    if any(not 0 <= count < SAMPLES_MAX for count in counts):
        raise ValueError("expected counts of samples, got numbers that are none")
    return [Row(*row) for row in zip(*columns, strict=True)]


def merged(ours: Mapping[str, Row], there: Iterable[Row], stale: Collection[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that an index is to hold, by key, and those of them that another run has added.

    Args:
        ours: what this run knows, by key.
        there: what the index holds now.
        stale: rows it held before that are of no object that this run has listed.
    """
    news = {row.key: row for row in there if ours.get(row.key) != row and row not in stale}
    return sorted({**ours, **news}.values(), key=lambda row: row.key), list(news.values())


def known(refs: Sequence[ObjectRef], indexes: Mapping[tuple[str, str], Iterable[Row]]) -> dict[int, int]:
    """Return the sample counts of the shards that are still what they were.

    Args:
        refs: the dataset's shards.
        indexes: rows by (root, folder) of the index they are from.

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
