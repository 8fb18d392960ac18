"""Which columns of an object are asked for, and errors of the libraries that read them."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.convert.long_params import named, spelled
from feedd.convert.memory_limits import no_memory
from feedd.errors import BadRecipe, BadShard, FeeddError, Internal, Unsupported

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from types import ModuleType

RequestContext = tuple[tuple[str, ...], ...]
"""For each field the names it may have, as recipes spell them. None at all: every column."""

ROWS_ONLY: Final = "rows"
"""Parameters of a form that makes no column at all: how many rows there are is all that is asked for."""

_NAMES_SHOWN: Final = 60
_TYPE_CHARS_SHOWN: Final = 200
_STORED: Final = {"float": "float32", "double": "float64", "string": "text", "binary": "", "null": ""}
_TIMES: Final = ("date32", "time32", "timestamp")


class Typed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which columns are asked for, and of which type they are.

    Attributes:
        types: names of types as Arrow has them, by the columns' names in lower case.
        other: the type of columns that are not in ``types``; empty: their values tell it.
        delimiter: between values, where it is not the form's own.
        strict: whether an object that lacks a column is refused; else its rows lack it, too.
        head: whether the object's beginning, or what it says of its columns, is all that is made: see ``head_params``.
    """

    columns: RequestContext = ()
    types: dict[str, str] = {}
    other: str = ""
    delimiter: str = ""
    strict: bool = False
    head: bool = False

    def type_of(self, name: str) -> str:
        """Return the type of a column; empty: its values tell it."""
        return self.types.get(name.lower(), self.other)


def stored_of(type_name: str) -> str:
    """Return how a column of text of that type is stored, see ``recipe.encodings``, as ``arrow_types.kept`` has it."""
    return "int64" if type_name.startswith(_TIMES) else _STORED.get(type_name, type_name)


def params_of(asked: Iterable[Iterable[str]]) -> str:
    """Return the parameters of a form that makes only some columns; the same for the same columns in any order."""
    return msgspec.json.encode(sorted({tuple(sorted(names)) for names in asked})).decode()


def typed_params(asked: Iterable[Iterable[str]], types: Mapping[str, str], other: str = "", delimiter: str = "") -> str:
    """Return parameters that say the types of columns, too; see ``Typed``. Nothing asked for: all columns.

    Raises:
        BadRecipe: they are too many.
    """
    columns = tuple(sorted({tuple(sorted(names)) for names in asked}))
    return _text(Typed(columns, dict(sorted(types.items())), other, delimiter))


def strict_params(params: str) -> str:
    """Return the parameters of the same form for who must know why an object lacks a column that is asked for."""
    return _text(msgspec.structs.replace(typed_by(params), strict=True))


def head_params(params: str) -> str:
    """Return the parameters of the same form of which a shard is made that tells columns, and whether there are rows.

    Of text it has the first rows. Of others it has one row without values, where the object has any.
    """
    return _text(msgspec.structs.replace(typed_by(params), head=True))


def is_head(params: str) -> bool:
    """Whether parameters are those of ``head_params``."""
    return spelled(params).startswith("{") and typed_by(params).head


def typed_by(params: str) -> Typed:
    """Return what ``params_of`` or ``typed_params`` was given.

    Raises:
        Internal: neither was.
    """
    params = spelled(params)
    try:
        if params.startswith("{"):
            return msgspec.json.decode(params.encode(), type=Typed)
        return Typed(msgspec.json.decode(params.encode(), type=RequestContext)) if params else Typed()
    except msgspec.DecodeError as error:
        raise Internal(f"expected names of columns, got {params[:80]!r}", stage="decode") from error


def _text(typed: Typed) -> str:
    return named(msgspec.json.encode(typed).decode())


def asked_by(params: str) -> RequestContext:
    """Return which columns are asked for; see ``typed_by``."""
    return typed_by(params).columns


def unread(params: str, others: Mapping[str, str]) -> Mapping[str, str]:
    """Return those columns that nobody can read of which a user must be told: where all columns are asked for."""
    return others if params == ROWS_ONLY or not typed_by(params).columns else {}


def chosen(params: str, usable: Collection[str], others: Mapping[str, str], url: str) -> list[str]:
    """Return those of an object's columns that are asked for, in the object's order.

    One that the object lacks, or has as what cannot be a field, its rows lack: they are bad samples then, in their
    places. A recipe that no shard can serve is refused before, where it is asked strictly.

    Args:
        params: of the form.
        usable: columns that can be fields.
        others: columns that cannot, and their types.
        url: named in errors.

    Raises:
        BadRecipe: asked strictly, there is none of the names that a field may have; lists those there are.
        Unsupported: likewise, there is, but it cannot be a field.
        BadShard: two columns that are asked for differ by case only.
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
            message = f"expected names of columns that differ, got {name!r} and {found[lower]!r}"
            raise BadShard(message, object=url, stage="decode")
        found[lower] = name
    return found


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NAMES_SHOWN])
    return (f"{shown} and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else shown) or "none"


@contextlib.contextmanager
def refusing(what: str, url: str) -> Iterator[None]:
    """Turn whatever a library raises into BadShard.

    Args:
        what: the object should be.
        url: named in errors.

    Raises:
        BadShard: the library raised something.
        ResourceExhausted: it had no memory.
    """
    try:
        yield
    except FeeddError:
        raise
    except MemoryError as error:
        raise no_memory(url) from error
    except Exception as error:  # a library has errors of many kinds for broken bytes
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise BadShard(f"expected {what}, got: {text}", object=url, stage="decode") from error


def needs(extra: str, url: str, error: ImportError) -> Unsupported:
    """Return the error for a library that is not installed."""
    message = f"expected the library {error.name or extra} to read this, got none"
    return Unsupported(message, object=url, hint=f"install feedd[{extra}]", stage="decode")


def loaded(module: str, extra: str, url: str) -> ModuleType:
    """Return a module that is, or uses, a library of an extra: it is met in workers only, where such data is.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise needs(extra, url, error) from error
