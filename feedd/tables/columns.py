"""Selects the requested columns of an object, and translates errors of the libraries that read them."""

from __future__ import annotations

import contextlib
import importlib
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.conversion import PARAMS_BYTES_MAX
from feedd.errors import BadRecipe, BadShard, FeeddError, Internal, Unsupported
from feedd.tables.memory import no_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from types import ModuleType


WantedColumns = tuple[tuple[str, ...], ...]
"""The requested columns: for each field its possible names, as recipes spell them. An empty tuple means all columns."""

ROWS_ONLY: Final = "rows"
"""Parameters of a conversion that makes no columns: only the number of rows is requested."""

TYPES: Final = "types"
"""Parameters of a text conversion that makes no table but a list of columns and their types."""

DELIMITER: Final = "DELIMITER"
"""Key of the delimiter among the column types, if it is not the conversion's own; columns are in lower case there."""

_NAMES_SHOWN: Final = 60
_TEXT_BYTES_MAX: Final = 48 << 10  # compressed, it fits into a message to a worker
_TYPE_CHARS_SHOWN: Final = 200
_STORED: Final = {"float": "float32", "double": "float64", "string": "text", "binary": "", "null": ""}
_TIMES: Final = ("date32", "time32", "timestamp")


class Typed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The requested columns and their types.

    Attributes:
        columns: see ``WantedColumns``.
        types: Arrow's names of types, by the columns' names in lower case.
        rest: the type of columns that are not in ``types``; empty: detected from the values.
        delimiter: the delimiter, if it is not the conversion's own.
        strict: whether an object that lacks a column is refused; otherwise its rows lack the column.
        head: whether only the object's beginning, or the list of its columns, is converted: see ``head_params``.
    """

    columns: WantedColumns = ()
    types: dict[str, str] = {}
    rest: str = ""
    delimiter: str = ""
    strict: bool = False
    head: bool = False

    def type_of(self, name: str) -> str:
        """Return the type of a column, or an empty string if it is detected from the values."""
        return self.types.get(name.lower(), self.rest)


def text_encoding(type_name: str) -> str:
    """Return the encoding of such a text column, see ``recipe.encodings`` and ``arrow_columns.column_encoding``."""
    return "int64" if type_name.startswith(_TIMES) else _STORED.get(type_name, type_name)


def params_of(asked: Iterable[Iterable[str]]) -> str:
    """Return the parameters of a conversion that makes only some columns; the order of columns does not matter."""
    return msgspec.json.encode(sorted({tuple(sorted(names)) for names in asked})).decode()


def typed_params(asked: Iterable[Iterable[str]], types: Mapping[str, str], rest: str = "", delimiter: str = "") -> str:
    """Return parameters that also state the columns' types, see ``Typed``. If ``asked`` is empty, all columns are read.

    Raises:
        BadRecipe: there are too many columns.
    """
    columns = tuple(sorted({tuple(sorted(names)) for names in asked}))
    return _text(Typed(columns, dict(sorted(types.items())), rest, delimiter))


def strict_params(params: str) -> str:
    """Return the parameters of the same conversion that refuses objects without a requested column."""
    plain = "" if params == ROWS_ONLY else params
    return _text(msgspec.structs.replace(typed_by(plain), strict=True))


def head_params(params: str) -> str:
    """Return the parameters of a conversion to a shard that shows which columns exist and whether there are rows.

    For text the shard has the first rows. Otherwise it has one row without values if the object has any rows.
    """
    return _text(msgspec.structs.replace(typed_by(params), head=True))


def is_head(params: str) -> bool:
    """Whether ``head_params`` made the parameters."""
    return params.startswith("{") and typed_by(params).head


def typed_by(params: str) -> Typed:
    """Return the arguments of ``params_of`` or ``typed_params`` from its result.

    Raises:
        Internal: neither of them made the parameters.
    """
    try:
        if params.startswith("{"):
            return msgspec.json.decode(params.encode(), type=Typed)
        return Typed(msgspec.json.decode(params.encode(), type=WantedColumns)) if params else Typed()
    except msgspec.DecodeError as error:
        raise Internal(f"expected names of columns, got {params[:80]!r}", stage="decode") from error


def _text(typed: Typed) -> str:
    """Return parameters as text.

    Raises:
        BadRecipe: they are too long for a message to a worker.
    """
    text = msgspec.json.encode(typed)
    if len(text) > PARAMS_BYTES_MAX and (size_bytes := len(zlib.compress(text))) > _TEXT_BYTES_MAX:
        message = f"expected column types of at most {_TEXT_BYTES_MAX} compressed bytes, got {size_bytes}"
        raise BadRecipe(message, hint="name fewer columns in fields", stage="decode")
    return text.decode()


def wanted_by(params: str) -> WantedColumns:
    """Return the requested columns; see ``typed_by``."""
    return typed_by(params).columns


def unread(params: str, others: Mapping[str, str]) -> Mapping[str, str]:
    """Return the unreadable columns that the user is told about: those in ``others`` if all columns are requested."""
    return others if params == ROWS_ONLY or not typed_by(params).columns else {}


def chosen(params: str, usable: Collection[str], others: Mapping[str, str], url: str) -> list[str]:
    """Return the requested columns of an object, in the object's order.

    If an object lacks a requested column, or the column cannot be a field, all its rows are bad samples. In strict mode
    an error is raised instead, so that a recipe that no shard can serve is refused early.

    Args:
        params: parameters of the conversion.
        usable: columns that can be fields.
        others: columns that cannot be fields, and their types.
        url: named in errors.

    Raises:
        BadRecipe: in strict mode, the object has none of a field's names; lists the existing names.
        Unsupported: in strict mode, the column exists but cannot be a field.
        BadShard: two requested columns differ only in case.
    """
    if params == ROWS_ONLY:
        return []
    typed = typed_by(params)
    asked = typed.columns
    by_name = _by_lower(usable, url, {name for names in asked for name in names} if asked else None)
    if not asked:
        return list(usable)
    refused = {name.lower(): kind for name, kind in others.items()}
    wanted: set[str] = set()
    for names in asked:
        found = [by_name[name] for name in names if name in by_name]
        if found:
            wanted.update(found)
            continue
        if not typed.strict:
            continue
        got, hint = " or ".join(names), f"there are {_some(usable)}"
        kind = next((refused[name] for name in names if name in refused), None)
        if kind is not None:
            expected = "a column of numbers, text or bytes, or of lists of numbers"
            message = f"expected {expected}, got {got} of type {kind[:_TYPE_CHARS_SHOWN]}"
            raise Unsupported(message, object=url, hint=hint, stage="decode")
        raise BadRecipe(f"expected the name of a column, got {got}", object=url, hint=hint, stage="decode")
    return [name for name in usable if name in wanted]


def _by_lower(usable: Iterable[str], url: str, only: set[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in usable:
        lower = name.lower()
        if lower in found and (only is None or lower in only):
            message = f"two columns differ only in case: {name!r} and {found[lower]!r}"
            raise BadShard(message, object=url, stage="decode")
        found[lower] = name
    return found


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NAMES_SHOWN])
    return (f"{shown} and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else shown) or "none"


@contextlib.contextmanager
def refusing(what: str, url: str) -> Iterator[None]:
    """Turn every exception of a library into BadShard.

    Args:
        what: the format that the object should have.
        url: named in errors.

    Raises:
        BadShard: the library raised an exception.
        ResourceExhausted: the library had no memory; BadShard if the limit is ``decode.memory``.
    """
    try:
        yield
    except FeeddError:
        raise
    except MemoryError as error:
        raise no_memory(url, error) from error
    except Exception as error:  # libraries raise many classes for broken bytes
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise BadShard(f"expected {what}, got: {text}", object=url, stage="decode") from error


def needs(extra: str, url: str, error: ImportError) -> Unsupported:
    """Return the error for a library that is not installed."""
    message = f"the library {error.name or extra}, which reads this format, is not installed"
    return Unsupported(message, object=url, hint=f"install feedd[{extra}]", stage="decode")


def loaded(module: str, extra: str, url: str) -> ModuleType:
    """Import a module of, or with, an optional library. Only workers call this, when they find such data.

    Raises:
        Unsupported: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise needs(extra, url, error) from error
