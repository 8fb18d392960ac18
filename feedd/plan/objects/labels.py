"""Labels of samples by what their objects are called: folders, and rows of a table. Pure; a microsecond per sample."""

from __future__ import annotations

import csv
import io
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.plan.objects.kinds import split_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.plan.objects.packs import Packs

TABLE_BYTES_MAX: Final = 1 << 28
_PATHS: Final = ("file_name", "filename", "file", "path", "image", "image_id", "id", "key", "__key__")
"""Columns that name a sample, the likeliest first."""
_INTEGER_MAX: Final = 1 << 60
_COLUMNS_MAX: Final = 4096
_LINE_BYTES_MAX: Final = 1 << 20
CLASSES_MAX: Final = 1 << 20
_NAMES_CHARS_MAX: Final = 16 << 20
UNLABELLED: Final = -(1 << 63)
"""Of a sample that nothing is said of: no label is as small."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of samples.

    Attributes:
        values: int64[samples] of each of the packs; ``UNLABELLED`` where there is none.
        classes: what the numbers stand for, in order; empty: they are the data's own.
        missing: samples without a label.
        first_missing: the first of them, by key; empty: there is none.
    """

    values: list[NDArray[np.int64]]
    classes: tuple[str, ...]
    missing: int = 0
    first_missing: str = ""


@dataclass(frozen=True, slots=True)
class LabelTable:
    """What a table says.

    Attributes:
        rows: the label of each path.
        classes: see ``Labels``; of the whole table, whatever samples there are.
    """

    rows: Mapping[str, int]
    classes: tuple[str, ...] = ()


def sample_names(packs: Packs) -> Iterator[str]:
    """Yield the key of the first object of each sample, below the folder of the URL."""
    members = packs.members
    first = np.flatnonzero(np.diff(members.sample, prepend=-1))
    starts = np.concatenate(([0], members.key_ends[:-1]))[first].tolist()
    for start, end in zip(starts, members.key_ends[first].tolist(), strict=True):
        yield members.keys[start:end].decode("utf-8", "surrogatepass")


def folder_labels(packs: Sequence[Packs], named: Sequence[str] = ()) -> Labels:
    """Return the class of each sample: the place of its folder, directly below its URL, among all of them in order.

    Args:
        packs: the samples.
        named: classes in the order that numbers them, instead of that of all folders; other folders are none.

    Raises:
        ValueError: there are too many folders.
    """
    numbers: dict[str, int] = {}
    found: list[NDArray[np.int64]] = []
    firsts: dict[str, str] = {}  # a sample of each folder
    for one in packs:
        codes: list[int] = []
        for name in sample_names(one):
            folder = name[: max(name.find("/"), 0)]
            code = numbers.setdefault(folder, len(numbers))
            if code == len(firsts):
                firsts[folder] = name
            codes.append(code)
        found.append(np.array(codes, np.int64))
    classes = tuple(named) or _in_order((folder for folder in numbers if folder), "folders below the URL")
    places = {folder: place for place, folder in enumerate(classes)}
    place = np.array([places.get(folder, UNLABELLED) for folder in numbers], np.int64)
    values = [place[codes] for codes in found]
    missing = sum(int(np.count_nonzero(one == UNLABELLED)) for one in values)
    first = next((name for folder, name in firsts.items() if folder not in places), "")
    return Labels(values, classes, missing, first)


def table_labels(packs: Sequence[Packs], table: LabelTable) -> Labels:
    """Return what a table says of each sample.

    Args:
        packs: the samples.
        table: by the path of a sample's first object below the URL's folder, that without extension, or either's last
            part.
    """
    found: list[NDArray[np.int64]] = []
    rows, missing, first = table.rows, 0, ""
    for one in packs:
        values: list[int] = []
        for name in sample_names(one):
            value = rows.get(name)
            if value is None:
                value = _looked_up(name, rows)
                if value == UNLABELLED:
                    missing, first = missing + 1, first or name
            values.append(value)
        found.append(np.array(values, np.int64))
    return Labels(found, table.classes, missing, first)


def _in_order(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return class names in their order, which is that of ImageFolder: by code points.

    Raises:
        ValueError: too many of them, or too much text.
    """
    classes = tuple(sorted(names))
    if len(classes) > CLASSES_MAX:
        raise ValueError(f"expected at most {CLASSES_MAX} {what} as classes, got {len(classes)}")
    chars = sum(map(len, classes))
    if chars > _NAMES_CHARS_MAX:
        raise ValueError(f"expected at most {_NAMES_CHARS_MAX} characters of {what} as classes, got {chars}")
    return classes


def _looked_up(name: str, rows: Mapping[str, int]) -> int:
    stem, last = split_name(name)[0], name.rpartition("/")[2]
    for path in (stem, last, split_name(last)[0]):
        if path in rows:
            return rows[path]
    return UNLABELLED


def parse_table(file: str, data: bytes, column: str, named: Sequence[str] = ()) -> LabelTable:
    """Return the labels of a table by path; nothing in it is trusted.

    Numbers count as they are; where one value is none, all are texts, each the place it has among all in order. An
    empty value, or null, is no label.

    Args:
        file: its name: tells what it is.
        data: all of it.
        column: of the labels; where there is none of that name, the only one beside that of paths.
        named: classes in the order that numbers them, whatever the values look like; others are no labels.

    Raises:
        ValueError: it is no such table, or says two things of one path; one line.
    """
    lower = file.lower()
    json = lower.endswith(("jsonl", "ndjson"))
    rows = _json_rows(data) if json else _csv_rows(data, "\t" if lower[-3:] == "tsv" else ",")
    texts: dict[str, str] = {}
    names: tuple[str, str] | None = None
    for number, row in enumerate(rows, 1):
        names = names or _columns(list(row), column)
        path, value = row.get(names[0]), row.get(names[1], "")
        if path is None or (value is None and not json) or isinstance(value, (dict, list)):
            raise ValueError(f"expected {names[0]!r} and {names[1]!r} in every row, got row {number} without")
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        text = "" if value is None else text
        key = str(path).removeprefix("./")
        if texts.setdefault(key, text) != text:
            raise ValueError(f"expected one label for {key!r:.80}, got two")
    return _numbered(texts, tuple(named))


def _numbered(texts: Mapping[str, str], named: tuple[str, ...]) -> LabelTable:
    said = {path: text for path, text in texts.items() if text}
    numbers = None if named else _integers(said)
    if numbers is None and not named and _fractions(said):
        some = next(text for text in said.values() if _integers({"": text}) is None)
        raise ValueError(
            f"expected whole numbers or names as labels, got {some!r}: keep such values in objects beside samples"
        )
    if numbers is None:
        classes = named or _in_order(set(said.values()), "texts in the column of labels")
        places = {text: place for place, text in enumerate(classes)}
        return LabelTable({path: places[text] for path, text in said.items() if text in places}, classes)
    worst = max(numbers.values(), key=abs, default=0)
    if abs(worst) >= _INTEGER_MAX:
        raise ValueError(f"expected labels below 2**60, got {worst}")
    return LabelTable(numbers)


def _integers(texts: Mapping[str, str]) -> dict[str, int] | None:
    try:
        return {path: int(text) for path, text in texts.items()}
    except ValueError:
        return None  # words


def _fractions(texts: Mapping[str, str]) -> bool:
    """Whether all are numbers: nobody who has such labels means their ranks."""
    try:
        return all(math.isfinite(float(text)) for text in texts.values())
    except ValueError:
        return False


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
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")  # decodes a piece at a time
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        if len(reader.fieldnames or ()) > _COLUMNS_MAX:
            raise ValueError(f"expected at most {_COLUMNS_MAX} columns, got {len(reader.fieldnames or ())}")
        yield from reader
    except csv.Error as error:
        raise ValueError(f"expected a table, got {error}") from error


def _json_rows(data: bytes) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    lines = io.BytesIO(data)
    for number in itertools.count(1):
        line = lines.readline(_LINE_BYTES_MAX + 1)
        if not line:
            return
        if len(line) > _LINE_BYTES_MAX:
            raise ValueError(f"expected lines of at most {_LINE_BYTES_MAX} bytes, got a longer one as line {number}")
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"expected an object in line {number}, got {error}") from error
