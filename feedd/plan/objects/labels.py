"""Labels of samples by what their objects are called: folders, and rows of a table. Pure; a microsecond per sample."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.plan.objects.kinds import split_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.plan.objects.packs import Packs

TABLE_BYTES_MAX: Final = 1 << 28
_PATHS: Final = ("file_name", "filename", "file", "path", "image", "image_id", "id", "key", "__key__")
"""Columns that name a sample, the likeliest first."""
_INTEGER_MAX: Final = 1 << 60
_COLUMNS_MAX: Final = 4096


def sample_names(packs: Packs) -> Iterator[str]:
    """Yield the key of the first object of each sample, below the folder of the URL."""
    members = packs.members
    first = np.flatnonzero(np.diff(members.sample, prepend=-1))
    starts = np.concatenate(([0], members.key_ends[:-1]))[first].tolist()
    for start, end in zip(starts, members.key_ends[first].tolist(), strict=True):
        yield members.keys[start:end].decode("utf-8", "surrogatepass")


def folder_labels(packs: Sequence[Packs]) -> list[NDArray[np.int64]]:
    """Return the class of each sample: the place of its folder, directly below its URL, among all of them in order.

    Raises:
        ValueError: an object lies in none; names it.
    """
    numbers: dict[str, int] = {}
    found: list[NDArray[np.int64]] = []
    for one in packs:
        codes: list[int] = []
        for name in sample_names(one):
            folder, slash, _ = name.partition("/")
            if not slash:
                raise ValueError(f"expected every object in a folder below its URL, got {name!r}")
            codes.append(numbers.setdefault(folder, len(numbers)))
        found.append(np.array(codes, np.int64))
    place = np.empty(len(numbers), np.int64)
    place[[numbers[folder] for folder in sorted(numbers)]] = np.arange(len(numbers))
    return [place[codes] for codes in found]


def table_labels(packs: Sequence[Packs], rows: Mapping[str, int]) -> list[NDArray[np.int64]]:
    """Return what a table says of each sample.

    Args:
        packs: the samples.
        rows: by the path of a sample's first object below the URL's folder, that without extension, or either's last
            part.

    Raises:
        ValueError: it says nothing of one; names it.
    """
    found: list[NDArray[np.int64]] = []
    for one in packs:
        values: list[int] = []
        for name in sample_names(one):
            value = rows.get(name)
            if value is None:
                value = _looked_up(name, rows)
            values.append(value)
        found.append(np.array(values, np.int64))
    return found


def _looked_up(name: str, rows: Mapping[str, int]) -> int:
    stem, last = split_name(name)[0], name.rpartition("/")[2]
    for path in (stem, last, split_name(last)[0]):
        if path in rows:
            return rows[path]
    raise ValueError(f"expected a row for every sample, got none for {name!r}")


def parse_table(file: str, data: bytes, column: str) -> dict[str, int]:
    """Return the labels of a table by path; nothing in it is trusted.

    Numbers count as they are; where one value is none, all are texts, each the place it has among all in order.

    Args:
        file: its name: tells what it is.
        data: all of it.
        column: of the labels; where there is none of that name, the only one beside that of paths.

    Raises:
        ValueError: it is no such table, or says two things of one path; one line.
    """
    lower = file.lower()
    rows = (
        _json_rows(data)
        if lower.endswith(("jsonl", "ndjson"))
        else _csv_rows(data, "\t" if lower[-3:] == "tsv" else ",")
    )
    texts: dict[str, str] = {}
    names: tuple[str, str] | None = None
    for number, row in enumerate(rows, 1):
        names = names or _columns(list(row), column)
        path, value = row.get(names[0]), row.get(names[1])
        if path is None or value is None or isinstance(value, (dict, list)):
            raise ValueError(f"expected {names[0]!r} and {names[1]!r} in every row, got row {number} without")
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        key = str(path).removeprefix("./")
        if texts.setdefault(key, text) != text:
            raise ValueError(f"expected one label for {key!r:.80}, got two")
    return _numbered(texts)


def _numbered(texts: Mapping[str, str]) -> dict[str, int]:
    try:
        values = {path: int(text) for path, text in texts.items()}
    except ValueError:
        places = {text: place for place, text in enumerate(sorted(set(texts.values())))}
        return {path: places[text] for path, text in texts.items()}
    worst = max(values.values(), key=abs, default=0)
    if abs(worst) >= _INTEGER_MAX:
        raise ValueError(f"expected labels below 2**60, got {worst}")
    return values


def _columns(names: Sequence[str], wanted: str) -> tuple[str, str]:
    """Return the column of paths and that of labels."""
    path = next((name for name in _PATHS if name in names and name != wanted), None)
    if path is None:
        path = next((name for name in names if name != wanted), "")
    others = [name for name in names if name != path]
    if not path or not others or (wanted not in others and len(others) > 1):
        raise ValueError(f"expected a column of paths and a column {wanted!r}, got {', '.join(map(repr, names))}")
    return path, wanted if wanted in others else others[0]


def _csv_rows(data: bytes, delimiter: str) -> Iterator[dict[str, Any]]:
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter, strict=True)
        if len(reader.fieldnames or ()) > _COLUMNS_MAX:
            raise ValueError(f"expected at most {_COLUMNS_MAX} columns, got {len(reader.fieldnames or ())}")
        yield from reader
    except csv.Error as error:
        raise ValueError(f"expected a table, got {error}") from error


def _json_rows(data: bytes) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"expected an object in line {number}, got {error}") from error
