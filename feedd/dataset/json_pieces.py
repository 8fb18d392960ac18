"""Reads untrusted JSON in pieces: a text of any size needs memory for one piece, and no call takes longer than that.

A parser holds the interpreter lock during a call, and the event loop waits for it, even if another thread calls. So no
parser gets more than one element and ``PIECE_BYTES``, and nothing that was read is kept here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

_T = TypeVar("_T")
Octets: TypeAlias = bytes | bytearray | memoryview

PIECE_BYTES: Final = 256 << 10
ELEMENT_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a list's element, or of an object's value, that is read as a whole."""
MEMBERS_MAX: Final = 4096
"""Maximum members of an object whose members are searched by name."""
_DEPTH_MAX: Final = 512
_NAME_BYTES_MAX: Final = 64 << 10
_SHOWN_BYTES: Final = 40
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^ \t\n\r,\]}]++")
_OPENED: Final = {b"[": b"]", b"{": b"}"}
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = 1, 2, 3, 4, 5
_KINDS: Final = np.zeros(256, np.uint8)
_KINDS[list(b'"\\,')] = _QUOTE, _BACKSLASH, _COMMA
_KINDS[list(b"[{")] = _OPEN
_KINDS[list(b"]}")] = _CLOSE
_STEPS: Final = np.array([0, 0, 0, 0, 1, -1], np.int64)


def decoded(data: Octets | msgspec.Raw, kind: type[_T], *, strict: bool = True) -> _T:
    """Return an untrusted piece of JSON, decoded.

    Raises:
        ValueError: the piece does not have that type; the message is one line.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=strict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected an index, got {error}") from error


def find(data: Octets, names: Collection[str]) -> dict[str, int]:
    """Return where the values of an object's members of these names begin; the object is the whole text.

    Raises:
        ValueError: the text is no object, or lacks one of the names.
    """
    found = {name: at for name, at in members(data) if name in names}
    for name in names:
        if name not in found:
            raise ValueError(f"expected an index, got an object without {name!r}")
    return found


def members(data: Octets, at: int = 0) -> Iterator[tuple[str, int]]:
    """Yield name and value position of each member of the object at ``at``; 0: the object is the whole text.

    Raises:
        ValueError: there is no object, or it has more than ``MEMBERS_MAX`` members.
    """
    begin = at
    at = _next(data, _opened(data, at, b"{"))
    count = 0
    while count or _mark(data, at) != b"}":
        count += 1
        if count > MEMBERS_MAX:
            raise ValueError(f"expected an index of at most {MEMBERS_MAX} members, got more")
        name = _STRING.match(data, at, at + _NAME_BYTES_MAX)
        colon = _next(data, name.end()) if name is not None else at
        if name is None or _mark(data, colon) != b":":
            raise _unexpected(data, at, "a name and a colon")
        value = _next(data, colon + 1)
        yield decoded(name[0], str), value
        at = _next(data, _behind(data, value))
        if _mark(data, at) == b"}":
            break
        if _mark(data, at) != b",":
            raise _unexpected(data, at, "a comma or a bracket")
        at = _next(data, at + 1)
    if not begin and _next(data, at + 1) < len(data):
        raise _unexpected(data, at + 1, "nothing after it")


def value(data: Octets, at: int, kind: type[_T]) -> _T:
    """Return the small value at ``at``.

    Raises:
        ValueError: the value does not have that type, or takes more than ``ELEMENT_BYTES_MAX``.
    """
    end = _behind(data, at)
    if end - at > ELEMENT_BYTES_MAX:
        raise ValueError(f"expected an index of values of at most {ELEMENT_BYTES_MAX} bytes, got {end - at}")
    return decoded(memoryview(data)[at:end], kind)


def elements(data: Octets, at: int, kind: type[_T]) -> Iterator[_T]:
    """Yield the elements of the list at ``at``; each must be small.

    Raises:
        ValueError: there is no list, or an element does not have that type.
    """
    _opened(data, at, b"[")
    decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]  # the type is known at run time
    for piece in _pieces(data, at):
        yield from _of(decoder, b"[%b]" % bytes(piece))


def items(data: Octets, kind: type[_T], *, strict: bool = True) -> Iterator[tuple[str, _T]]:
    """Yield the members of an object, each of them small; the object is the whole text.

    Raises:
        ValueError: the text is no object, or a value does not have that type.
    """
    at = _next(data, 0)
    _opened(data, at, b"{")
    decoder: msgspec.json.Decoder[dict[str, Any]]
    decoder = msgspec.json.Decoder(dict[str, kind], strict=strict)  # type: ignore[valid-type]  # the type is known at run time
    end = _end(data, at)
    if _next(data, end) < len(data):
        raise _unexpected(data, end, "nothing after it")
    for piece in _pieces(data, at):
        yield from _of(decoder, b"{%b}" % bytes(piece)).items()


def _of(decoder: msgspec.json.Decoder[_T], piece: bytes) -> _T:
    try:
        return decoder.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected an index, got {error}") from error


def _pieces(data: Octets, at: int) -> Iterator[memoryview]:
    """Yield the text between the brackets of the list or object at ``at``, cut at commas between its elements."""
    octets = memoryview(data)
    start = at + 1
    for commas, seen, close in _windows(data, at):
        for cut in (*commas[-1:].tolist(), *([close] if close >= 0 else [])):
            piece = octets[start:cut]
            if _next(piece, 0) < len(piece):
                yield piece
            elif cut != close or start > at + 1:
                raise _unexpected(data, start, "an element")
            start = cut + 1
        if close < 0 and seen - start > ELEMENT_BYTES_MAX:
            raise ValueError(f"expected an index of elements of at most {ELEMENT_BYTES_MAX} bytes, got a larger one")


def _behind(data: Octets, at: int) -> int:
    """Return where the value at ``at`` ends.

    A small value is checked to be JSON; of a larger value only the end is known.

    Raises:
        ValueError: there is no value.
    """
    mark = _mark(data, at)
    if mark in _OPENED:
        end = _end(data, at)
    else:
        found = (_STRING if mark == b'"' else _SCALAR).match(data, at, at + ELEMENT_BYTES_MAX)
        if found is None:
            raise _unexpected(data, at, "a value")
        end = found.end()
    if end - at <= ELEMENT_BYTES_MAX:
        decoded(memoryview(data)[at:end], msgspec.Raw)
    return end


def _end(data: Octets, at: int) -> int:
    """Return the position after the list or object at ``at``."""
    return max(close for _, _, close in _windows(data, at)) + 1


def _windows(data: Octets, at: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Yield where commas are directly inside the list or object at ``at``, one window of text at a time.

    Yields:
        Positions of the commas; the end of the window; the position of the closing bracket, or -1 if not in this
            window.

    Raises:
        ValueError: the text ends too early, or is nested too deeply.
    """
    octets = np.frombuffer(data, np.uint8)
    depth, quoted, escaped = 0, 0, False
    for low in range(at, len(octets), PIECE_BYTES):
        kinds = _KINDS[octets[low : low + PIECE_BYTES]]
        high = low + len(kinds)
        escaped = _strike(kinds, first=escaped)
        places = np.flatnonzero(kinds)
        marks = kinds[places]
        quotes = np.cumsum(marks == _QUOTE) + quoted
        outside = quotes & 1 == 0
        depths = np.cumsum(np.where(outside, _STEPS[marks], 0)) + depth
        closed = np.flatnonzero(outside & (marks == _CLOSE) & (depths == 0))[:1]
        if depths[: closed[0] if closed.size else None].max(initial=0) > _DEPTH_MAX:
            raise ValueError(f"expected an index, got one nested more than {_DEPTH_MAX} deep")
        commas = places[outside & (marks == _COMMA) & (depths == 1)] + low
        if closed.size:
            close = int(places[closed[0]]) + low
            opened = bytes(octets[at : at + 1])
            if bytes(octets[close : close + 1]) != _OPENED[opened]:
                raise _unexpected(data, close, _OPENED[opened].decode())
            yield commas[commas < close], high, close
            return
        yield commas, high, -1
        if len(places):
            depth, quoted = int(depths[-1]), int(quotes[-1]) & 1
    raise ValueError("expected an index, got a truncated text")


def _strike(kinds: NDArray[np.uint8], *, first: bool) -> bool:
    """Clear the marks after a backslash; return whether the first mark of the next window must be cleared too.

    Args:
        kinds: kinds of a window's bytes; changed in place.
        first: the byte before the window is an unescaped backslash.
    """
    if first:
        kinds[:1] = 0
    slashes = np.flatnonzero(kinds == _BACKSLASH)
    if not slashes.size:
        return False
    order = np.arange(len(slashes))
    begins = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) != 1, order, 0))
    behind = slashes[(order - begins) & 1 == 0] + 1  # in a run of backslashes, every second one is escaped
    kinds[slashes] = 0
    kinds[behind[behind < len(kinds)]] = 0
    return bool(behind[-1] == len(kinds))


def _opened(data: Octets, at: int, bracket: bytes) -> int:
    """Return the position after the next bracket."""
    at = _next(data, at)
    if _mark(data, at) != bracket:
        raise _unexpected(data, at, "an object" if bracket == b"{" else "a list")
    return at + 1


def _next(data: Octets, at: int) -> int:
    """Return the position of the next character that is not white space."""
    while True:
        found = _SPACE.match(data, at, at + PIECE_BYTES)
        end = at if found is None else found.end()
        if end - at < PIECE_BYTES:
            return end
        at = end


def _mark(data: Octets, at: int) -> bytes:
    return bytes(memoryview(data)[at : at + 1])


def _unexpected(data: Octets, at: int, expected: str) -> ValueError:
    got = bytes(memoryview(data)[at : at + _SHOWN_BYTES]).decode(errors="replace")
    return ValueError(f"expected an index, with {expected} at byte {at}, got {got!r}")
