"""Labels of samples from the names of their objects: folders, or rows of a table. Pure; a microsecond per sample."""

from __future__ import annotations

import csv
import heapq
import io
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, AnyStr, Final, TypeVar, cast

import msgspec
import numpy as np

from feedd.dataset.object_names import split_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from _typeshed import WriteableBuffer
    from numpy.typing import NDArray

    from feedd.dataset.json_pieces import Octets
    from feedd.dataset.packs import Packs

TABLE_BYTES_MAX: Final = 1 << 28
_PATHS: Final = ("file_name", "filename", "file", "path", "image", "image_id", "id", "key", "__key__")
"""Columns that name a sample, the most likely first."""
_INTEGER_MAX: Final = 1 << 60
_COLUMNS_MAX: Final = 4096
_LINE_BYTES_MAX: Final = 1 << 20
CLASSES_MAX: Final = 1 << 20
_NAMES_CHARS_MAX: Final = 16 << 20
_SORTED_AT_ONCE: Final = 1 << 14
_PARTS: Final = 64
_V = TypeVar("_V")
UNLABELLED: Final = -(1 << 63)
"""Value of a sample without a label; no label is as small."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of samples.

    Attributes:
        values: int64[samples] for each of the packs; ``UNLABELLED``: no label.
        classes: class names behind the numbers, in order; empty: the numbers are the data's own.
        missing: number of samples without a label.
        first_missing: key of the first of them; empty: there is none.
    """

    values: list[NDArray[np.int64]]
    classes: tuple[str, ...]
    missing: int = 0
    first_missing: str = ""


class _Parted(Mapping[str, _V]):
    """Values by text, in many dicts: growing one dict of millions would hold the interpreter lock for too long.

    Attributes:
        parts: the dicts.
    """

    def __init__(self) -> None:
        self.parts: list[dict[str, _V]] = [{} for _ in range(_PARTS)]

    def part(self, text: str) -> dict[str, _V]:
        """Return the dict that a text belongs to."""
        return self.parts[hash(text) % _PARTS]

    def __getitem__(self, text: str) -> _V:
        return self.part(text)[text]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def all_values(self) -> Iterator[_V]:
        """Yield all values."""
        return (value for part in self.parts for value in part.values())


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The content of a label table.

    Attributes:
        rows: the label of each path.
        classes: see ``Labels``; of the whole table, whichever samples exist.
    """

    rows: Mapping[str, int]
    classes: tuple[str, ...] = ()

    def clear(self) -> None:
        """Forget the rows one by one: freeing millions in one call would hold the interpreter lock for too long."""
        for part in self.rows.parts if isinstance(self.rows, _Parted) else ():
            while part:
                part.popitem()


def sample_names(packs: Packs) -> Iterator[str]:
    """Yield the key of the first object of each sample, relative to the URL's folder."""
    members = packs.members
    first = np.flatnonzero(np.diff(members.sample, prepend=-1))
    starts = np.concatenate(([0], members.key_ends[:-1]))[first].tolist()
    for start, end in zip(starts, members.key_ends[first].tolist(), strict=True):
        yield members.keys[start:end].decode("utf-8", "surrogatepass")


def folder_labels(packs: Sequence[Packs], named: Sequence[str] = ()) -> Labels:
    """Return the class of each sample: the rank of its folder, directly below its URL, among all folders.

    Args:
        packs: the samples.
        named: classes in the order of their numbers, instead of all folders in order; samples in other folders have no
            label.

    Raises:
        ValueError: there are too many folders.
    """
    numbers: dict[str, int] = {}
    found: list[NDArray[np.int64]] = []
    firsts: dict[str, str] = {}  # one sample of each folder
    for one in packs:
        codes: list[int] = []
        for name in sample_names(one):
            folder = name[: max(name.find("/"), 0)]
            code = numbers.setdefault(folder, len(numbers))
            if code == len(firsts):
                firsts[folder] = name
            codes.append(code)
        found.append(np.array(codes, np.int64))
    classes = tuple(named) or _in_order([folder for folder in numbers if folder], "folders below the URL")
    places = {folder: place for place, folder in enumerate(classes)}
    place = np.array([places.get(folder, UNLABELLED) for folder in numbers], np.int64)
    values = [place[codes] for codes in found]
    missing = sum(int(np.count_nonzero(one == UNLABELLED)) for one in values)
    first = next((name for folder, name in firsts.items() if folder not in places), "")
    return Labels(values, classes, missing, first)


def table_labels(packs: Sequence[Packs], table: LabelTable) -> Labels:
    """Return a table's label of each sample.

    Args:
        packs: the samples.
        table: labels by path. A path is that of a sample's first object below the URL's folder, the same without
            extension, or the last part of either.
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


def _in_order(names: Collection[str], what: str) -> tuple[str, ...]:
    """Return class names in ImageFolder's order, by code points.

    Raises:
        ValueError: there are too many names, or too much text.
    """
    if len(names) > CLASSES_MAX:
        raise ValueError(f"expected at most {CLASSES_MAX} {what} as classes, got {len(names)}")
    chars = sum(len(name) for name in names)
    if chars > _NAMES_CHARS_MAX:
        raise ValueError(f"expected at most {_NAMES_CHARS_MAX} characters of {what} as classes, got {chars}")
    left = iter(names)  # in parts, because sorting a million in one call would hold the interpreter lock for too long
    parts = iter(lambda: sorted(itertools.islice(left, _SORTED_AT_ONCE)), [])
    return tuple(heapq.merge(*parts))


def _looked_up(name: str, rows: Mapping[str, int]) -> int:
    stem, last = split_name(name)[0], name.rpartition("/")[2]
    for path in (stem, last, split_name(last)[0]):
        if path in rows:
            return rows[path]
    return UNLABELLED


def parse_table(file: str, data: Octets, column: str, named: Sequence[str] = ()) -> LabelTable:
    """Return the labels of a table by path; its content is not trusted.

    Numbers are used as they are. If one value is not a number, all values are texts, numbered by their rank among all.
    An empty value, or null, is no label.

    Args:
        file: the file's name, which tells the format.
        data: the whole file.
        column: column of the labels. If there is none of that name, the only column besides the paths.
        named: classes in the order of their numbers, even if the values look like numbers; other values are no labels.

    Raises:
        ValueError: the data is no such table, or has two labels for one path; the message is one line.
    """
    lower = file.lower()
    json = lower.endswith(("jsonl", "ndjson"))
    rows = _json_rows(data) if json else _csv_rows(data, "\t" if lower[-3:] == "tsv" else ",")
    texts: _Parted[str] = _Parted()
    names: tuple[str, str] | None = None
    for number, row in enumerate(rows, 1):
        names = names or _columns(list(row), column)
        path, value = row.get(names[0]), row.get(names[1], "")
        if path is None or (value is None and not json) or isinstance(value, (dict, list)):
            raise ValueError(
                f"expected {names[0]!r} and {names[1]!r} in every row, got row {number} without one of them"
            )
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        text = "" if value is None else text
        key = str(path).removeprefix("./")
        if texts.part(key).setdefault(key, text) != text:
            raise ValueError(f"expected one label for {key!r:.80}, got two")
    return _numbered(texts, tuple(named))


def _numbered(texts: _Parted[str], named: tuple[str, ...]) -> LabelTable:
    """Return the table of these labels, reusing their mapping, because freeing a second one would take as long."""
    _drop(texts, lambda text: not text)
    whole = not named and _are(texts.all_values(), int)
    if not whole and not named and _are(texts.all_values(), _finite):
        some = next(text for text in texts.all_values() if not _are((text,), int))
        raise ValueError(
            f"expected whole numbers or names as labels, got {some!r}: keep such values in objects beside samples"
        )
    if whole:
        rows = _replaced(texts, int)
        worst = max(rows.all_values(), key=lambda number: abs(number), default=0)  # noqa: PLW0108 - others get a turn
        if abs(worst) >= _INTEGER_MAX:
            raise ValueError(f"expected labels below 2**60, got {worst}")
        return LabelTable(rows)
    classes = named or _in_order({text for text in texts.all_values()}, "texts in the column of labels")  # noqa: C416 - others get a turn
    places = {text: place for place, text in enumerate(classes)}
    _drop(texts, lambda text: text not in places)
    return LabelTable(_replaced(texts, places.__getitem__), classes)


def _drop(texts: _Parted[str], unwanted: Callable[[str], bool]) -> None:
    for part in texts.parts:
        for path in [path for path, text in part.items() if unwanted(text)]:
            del part[path]


def _replaced(texts: _Parted[str], number: Callable[[str], int]) -> _Parted[int]:
    """Return the same mapping, its texts replaced by numbers."""
    rows = cast("_Parted[int]", texts)
    for part in texts.parts:
        numbers = cast("dict[str, int]", part)
        for path, text in part.items():
            numbers[path] = number(text)
    return rows


def _are(texts: Iterable[str], kind: Callable[[str], object]) -> bool:
    """Whether ``kind`` accepts all texts."""
    try:
        for text in texts:
            kind(text)
    except ValueError:
        return False
    return True


def _finite(text: str) -> float:
    """Return a number; labels that are all non-integer numbers are not meant as classes."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {text}")
    return number


def _columns(names: Sequence[str], wanted: str) -> tuple[str, str]:
    """Return the column of paths and the column of labels."""
    path = next((name for name in _PATHS if name in names and name != wanted), None)
    if path is None:
        path = next((name for name in names if name != wanted), "")
    others = [name for name in names if name != path]
    if not path or not others or (wanted not in others and len(others) > 1):
        raise ValueError(f"expected a column of paths and a column {wanted!r}, got {', '.join(map(repr, names))}")
    return path, wanted if wanted in others else others[0]


def _csv_rows(data: Octets, delimiter: str) -> Iterator[dict[str, Any]]:
    try:
        text = io.TextIOWrapper(_buffered(data), encoding="utf-8-sig", newline="")  # decodes one piece at a time
        reader = csv.DictReader(_lines(text), delimiter=delimiter, strict=True)
        if len(reader.fieldnames or ()) > _COLUMNS_MAX:
            raise ValueError(f"expected at most {_COLUMNS_MAX} columns, got {len(reader.fieldnames or ())}")
        yield from reader
    except csv.Error as error:
        raise ValueError(f"expected a table, got {error}") from error


def _json_rows(data: Octets) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in enumerate(_lines(_buffered(data)), 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"expected an object in line {number}, got {error}") from error


def _lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    for number in itertools.count(1):
        line = file.readline(_LINE_BYTES_MAX + 1)
        if not line:
            return
        if len(line) > _LINE_BYTES_MAX:
            raise ValueError(f"expected lines of at most {_LINE_BYTES_MAX} bytes, got a longer one as line {number}")
        yield line


def _buffered(data: Octets) -> io.BufferedReader:
    return io.BufferedReader(_Reading(memoryview(data)))


class _Reading(io.RawIOBase):
    """Bytes in memory as a file, read without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Copy the next bytes."""
        with memoryview(buffer) as target:
            count = min(len(target), len(self._left))
            target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
