"""Labels that are not stored in samples: the number of a sample's folder, or a value from a table. Pure.

Short forms are ``folder``, ``table:FILE`` and ``table:FILE:COLUMN``. The long form is ``{"decode": "table", "file":
"labels.csv", "column": "breed"}``, which accepts ``transforms`` and ``as`` like any number. FILE is a URL, or a path in
the folder that the dataset's first URL names. All labels are numbers (``int``). A text is numbered by its position
among all texts of the column, in sorted order.

Such a field has no bytes in a shard: the index stores the number itself in place of the field's offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from feedd.errors import BadRecipe
from feedd.recipe.classes import check_classes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import ObjectRef

FOLDER: Final = "__folder__"
_TABLE: Final = "__table__"
_NUMBER_AT: Final = 1 << 62
_NUMBER_MAX: Final = 1 << 60
NUMBER_BYTES: Final = 8
"""Bytes of one label."""

NUMBER_STORED: Final = "int64"
"""Encoding of labels."""

_NONE: Final = msgspec.Raw(b"null")
_TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson")


class TableLabel(NamedTuple):
    """A column of a table.

    Attributes:
        file: URL, or path below the dataset's folder.
        column: column of the labels; if the table lacks it, the only column apart from the paths.
        version: etag of the file; empty: not requested yet.
        classes: names of labels, in order, if the recipe lists them; empty: all values of the column.
    """

    file: str
    column: str
    version: str = ""
    classes: tuple[str, ...] = ()


class _Long(msgspec.Struct, forbid_unknown_fields=True, tag_field="decode", tag="table"):
    file: str
    column: str = ""
    classes: tuple[str, ...] = ()
    transforms: msgspec.Raw = _NONE
    as_: msgspec.Raw = msgspec.field(default=_NONE, name="as")

    def __post_init__(self) -> None:
        check_classes(self.classes)


class _Folder(msgspec.Struct, forbid_unknown_fields=True, tag_field="decode", tag="folder"):
    classes: tuple[str, ...] = ()
    transforms: msgspec.Raw = _NONE
    as_: msgspec.Raw = msgspec.field(default=_NONE, name="as")

    def __post_init__(self) -> None:
        check_classes(self.classes)


def label_source(name: str, text: str) -> str:
    """Return the label source that a field's recipe names; empty: the field is not a folder or table label.

    Args:
        name: batch key.
        text: recipe text.

    Raises:
        BadRecipe: the table is invalid.
    """
    text = text.strip()
    if text == "folder":
        return FOLDER
    if text.startswith("table:"):
        return _table(name, *_split(text.removeprefix("table:")))
    decoded = _decode_of(text) if text.startswith("{") else None
    if not isinstance(decoded, str) or decoded not in {"folder", "table"}:
        return ""
    try:
        found = msgspec.json.decode(text.encode(), type=_Folder | _Long)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecipe(f"{decoded}: {error}", object=name, stage="decode") from error
    if isinstance(found, _Folder):
        return FOLDER + (msgspec.json.encode(found.classes).decode() if found.classes else "")
    return _table(name, found.file, found.column, found.classes)


def label_options(text: str) -> dict[str, Any]:
    """Return the options of a label's long form that concern the number: ``transforms`` and ``as``."""
    form = msgspec.json.decode(text.encode()) if text.strip().startswith("{") else {}
    return {name: value for name, value in form.items() if name in {"transforms", "as"}}


def _decode_of(text: str) -> object:
    """Return a long form's ``decode`` entry; None: the text is not a JSON object, or has no such entry."""
    try:
        form = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError):
        return None  # the recipe parser reports it
    return form.get("decode") if isinstance(form, dict) else None


def _split(text: str) -> tuple[str, str]:
    """Split ``FILE:COLUMN``; the colon of a URL's scheme does not count."""
    file, colon, column = text.rpartition(":")
    return (file, column) if colon and not column.startswith("//") else (text, "")


def _table(name: str, file: str, column: str, classes: tuple[str, ...] = ()) -> str:
    if not file.lower().endswith(_TABLES):
        raise BadRecipe(f"expected a table ending in {' or '.join(_TABLES)}, got {file!r}", object=name, stage="decode")
    return _source(TableLabel(file, column or name, "", classes))


def _source(table: TableLabel) -> str:
    said = table if table.classes else table[: 3 if table.version else 2]
    return f"{_TABLE}{msgspec.json.encode(said).decode()}"


def table_of(source: str) -> TableLabel | None:
    """Return the table that a recipe's source names; None: the source is not a table."""
    if not source.startswith(_TABLE):
        return None
    return msgspec.json.decode(source.removeprefix(_TABLE), type=TableLabel)


def classes_of(source: str) -> tuple[str, ...]:
    """Return the classes that a recipe lists for a label, in order; empty: all values of the data are classes."""
    table = table_of(source)
    if table is not None:
        return table.classes
    named = source.removeprefix(FOLDER)
    return msgspec.json.decode(named, type=tuple[str, ...]) if named else ()


def versioned(table: TableLabel, ref: ObjectRef) -> str:
    """Return the source of a column in the given version of a table."""
    return _source(table._replace(file=ref.url, version=ref.etag))


def is_label(source: str) -> bool:
    """Whether a field's source is a folder or table label."""
    return source.startswith((FOLDER, _TABLE))


def unlabelled(source: str) -> str:
    """Return the reason why a sample has no label from this source."""
    table = table_of(source)
    known = " that is one of the classes" if classes_of(source) else ""
    if table is None:
        return f"it is in no folder below the URL{known}"
    return f"no row of {table.file} gives it a {table.column!r}{known}"


def number_at(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[rows], the offsets that encode these numbers in an index."""
    return values + np.int64(_NUMBER_AT)


def number_of(start: int) -> int | None:
    """Return the number that an offset encodes; None: the offset is a position in a file."""
    return start - _NUMBER_AT if start >= _NUMBER_AT - _NUMBER_MAX else None


def are_numbers(starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[rows]: which offsets encode numbers rather than positions in a file."""
    return starts >= _NUMBER_AT - _NUMBER_MAX


def numbers_of(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[rows], the numbers that these offsets encode; all offsets must encode numbers."""
    return starts - np.int64(_NUMBER_AT)


def fits(value: int) -> bool:
    """Whether a number is small enough to be a label."""
    return -_NUMBER_MAX <= value < _NUMBER_MAX
