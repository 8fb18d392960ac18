"""SageMaker's ManifestFile: a JSON array of a prefix and names to append to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import time
from array import array
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec
import numpy as np

from feedd.catalog.urls import parse_url
from feedd.errors import BadRequest, FeeddError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from feedd.dataset.json_pieces import Octets

_T = TypeVar("_T")

MANIFEST_BYTES_MAX = 256 << 20
MANIFEST_NAMES_MAX = 2_000_000
"""Maximum names of a manifest, because each needs its own request."""

_PIECE_BYTES: Final = 16 << 10  # the event loop waits while a piece is parsed, which may hold thousands of names
_ELEMENT_BYTES_MAX: Final = 64 << 10  # far above any name: keys have at most 1,024 bytes
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_STRING: Final = re.compile(rb'"((?:[^"\\\x00-\x1f]++|\\.)*+)"')
_NAMES: Final = re.compile(rb'(?:[ \t\n\r]*+,[ \t\n\r]*+"(?:[^"\\\x00-\x1f]++|\\.)*+")++')
_TEXTS: Final = msgspec.json.Decoder(list[str])
_BUCKET: Final = re.compile(r"s3://(?!arn:)[^/]+/")
_SHOWN_BYTES: Final = 80
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SHAPE = 'a manifest is [{"prefix": "s3://bucket/some/prefix/"}, "name-1", "name-2", ...]'
_AUGMENTED = "a manifest with a JSON object on each line is an augmented one: write augmented+s3://…"


class Names:
    """Stores and keys of very many objects in a few blocks of memory; a text exists only while it is used.

    Freeing millions of texts together would block the interpreter, and so the event loop, for a long time.
    """

    def __init__(self, names: Iterable[tuple[str, str]] = ()) -> None:
        self._keys, self._ends = bytearray(), array("q")
        self._roots: dict[str, int] = {}
        self._root_of = array("I")
        for root, key in names:
            self._keys += key.encode("utf-8", "surrogatepass")
            self._ends.append(len(self._keys))
            self._root_of.append(self._roots.setdefault(root, len(self._roots)))

    def add(self, root: str, prefix: str, names: Sequence[str]) -> None:
        """Append objects of one store; their keys are ``prefix`` and each of ``names``."""
        text = prefix + prefix.join(names)
        octets = text.encode("utf-8", "surrogatepass")
        sizes = np.fromiter(map(len, names), np.int64, len(names)) + len(prefix)
        if len(octets) != len(text):
            encoded = (name.encode("utf-8", "surrogatepass") for name in names)
            sizes = np.fromiter(map(len, encoded), np.int64, len(names)) + len(prefix.encode("utf-8", "surrogatepass"))
        self._ends.frombytes((np.cumsum(sizes) + len(self._keys)).tobytes())
        self._keys += octets
        self._root_of.frombytes(np.full(len(names), self._roots.setdefault(root, len(self._roots)), np.uintc).tobytes())

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, name: object) -> bool:
        return any(name == one for one in self)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        roots = list(self._roots)
        start = 0
        for number, end in enumerate(self._ends):
            yield roots[self._root_of[number]], self._keys[start:end].decode("utf-8", "surrogatepass")
            start = end


def names_in(data: Octets, url: str) -> Names:
    """Return stores and keys of the objects in a manifest, in its order; duplicates stay.

    Names are appended to the prefix verbatim. If the prefix holds the bucket, names are not parsed one by one, because
    two million names would occupy a core for seconds.

    Raises:
        BadRequest: not JSON, not a manifest, no names, too many names, or a name that makes no URL.
        Unsupported: see ``parse_url``.
    """
    found = Names()
    for prefix, names in parse_manifest(data, url):
        time.sleep(0)  # releases the interpreter: on busy cores the event loop would otherwise wait up to 0.9 s
        if _BUCKET.match(prefix):
            place = parse_url(prefix)
            found.add(place.root, place.key, names)
        else:
            places = map(parse_url, [prefix + name for name in names])
            for root, together in itertools.groupby(places, lambda place: place.root):
                found.add(root, "", [place.key for place in together])
    return found


def parse_manifest(data: Octets, url: str) -> Iterator[tuple[str, list[str]]]:
    """Yield a manifest's prefix with the next names, in its order.

    Only a small piece of the manifest is parsed at a time, so no call takes long, whatever the manifest holds.

    Raises:
        BadRequest: not JSON, not a manifest, no names, or too many names.
    """
    reader = _Reader(data, url)
    reader.take(b"[", "a json array")
    prefix = reader.prefix()
    count = 0
    while names := reader.names(count):
        count += len(names)
        if count > MANIFEST_NAMES_MAX:
            raise _bad(f"expected at most {MANIFEST_NAMES_MAX} names, got more", url)
        yield prefix, names
    reader.take(b"]", "a comma, or the end of the json array,")
    reader.end()
    if not count:
        raise _bad("expected at least one name after the prefix, got none", url)


class _Reader:
    """Reads a manifest from start to end, element by element."""

    def __init__(self, data: Octets, url: str) -> None:
        self._data = memoryview(data)
        self._url = url
        self._at = len(_BYTE_ORDER_MARK) if bytes(self._data[: len(_BYTE_ORDER_MARK)]) == _BYTE_ORDER_MARK else 0

    def takes(self, mark: bytes) -> bool:
        """Skip ``mark`` if it is next; return whether it was."""
        self._skip_space()
        if self._data[self._at : self._at + len(mark)] != mark:
            return False
        self._at += len(mark)
        return True

    def take(self, mark: bytes, expected: str) -> None:
        """Skip ``mark``, which must be next.

        Raises:
            BadRequest: something else is next.
        """
        if not self.takes(mark):
            raise self._unexpected(expected)

    def prefix(self) -> str:
        """Return the prefix from the first element.

        Raises:
            BadRequest: the first element holds no prefix.
        """
        self._skip_space()
        expected = "a prefix like s3://bucket/ as first element"
        try:
            text = bytes(self._data[self._at : self._at + _ELEMENT_BYTES_MAX]).decode(errors="surrogateescape")
            head, end = json.JSONDecoder().raw_decode(text)
            size_bytes = len(text[:end].encode())
        except (ValueError, RecursionError):
            raise self._unexpected(expected) from None
        prefix = head.get("prefix") if isinstance(head, dict) else None
        if not isinstance(prefix, str) or "://" not in prefix:
            raise self._unexpected(expected)
        self._at += size_bytes
        return prefix

    def names(self, before_count: int) -> list[str]:
        """Return the names in the next piece of the text; empty if no comma is next.

        Raises:
            BadRequest: an element is not a name.
        """
        piece = bytes(self._data[self._at : self._at + _PIECE_BYTES])
        cut = piece.rfind(b'",') + 1  # a cut inside a name leaves a string open, which the decoder refuses
        if cut and piece[:1] == b",":
            with contextlib.suppress(ValueError):
                plain = _TEXTS.decode(b"[%b]" % piece[1:cut])
                self._at += cut
                return plain
        found = _NAMES.match(self._data, self._at, self._at + _PIECE_BYTES)
        if found is None:
            return [self._name(before_count + 1)] if self.takes(b",") else []
        try:
            names: list[str] = json.loads("[" + found[0].decode().lstrip(" \t\n\r")[1:] + "]")
        except ValueError:  # find the invalid name
            names = []
            while self._at < found.end() and self.takes(b","):
                names.append(self._name(before_count + len(names) + 1))
        self._at = found.end()
        return names

    def _name(self, number: int) -> str:
        """Return the next name."""
        self._skip_space()
        found = _STRING.match(self._data, self._at, self._at + _ELEMENT_BYTES_MAX)
        if found is None:
            raise self._unexpected(f"a name as element {number}")
        self._at = found.end()
        try:
            name: str = json.loads(found[0].decode())
        except ValueError as error:
            raise _bad(f"expected a name as element {number}, got {error}", self._url) from error
        return name

    def end(self) -> None:
        """Check that the text ends here.

        Raises:
            BadRequest: more text follows.
        """
        self._skip_space()
        if self._at < len(self._data):
            raise self._unexpected("nothing after the json array")

    def _skip_space(self) -> None:
        found = _SPACE.match(self._data, self._at, self._at + _ELEMENT_BYTES_MAX)
        self._at = self._at if found is None else found.end()

    def _unexpected(self, expected: str) -> BadRequest:
        got = bytes(self._data[self._at : self._at + _SHOWN_BYTES]).decode(errors="replace")
        hint = f"{_SHAPE}; {_AUGMENTED}" if bytes(self._data[:1]) == b"{" else _SHAPE
        return _bad(f"expected {expected} at byte {self._at}, got {got!r}", self._url, hint)


def _bad(message: str, url: str, hint: str = _SHAPE) -> BadRequest:
    return BadRequest(message, object=url, hint=hint, stage="source")


async def head_all(
    names: Collection[tuple[str, str]], head: Callable[[str, str], Awaitable[_T]], in_flight: int
) -> list[_T]:
    """Return the current version of each (root, key), in order, with ``in_flight`` requests at a time.

    Raises:
        FeeddError: the first error of ``head``; the other requests are cancelled.
    """
    found: list[_T | None] = [None] * len(names)
    todo = iter(enumerate(names))  # shared: each worker takes the next name
    failures: list[FeeddError] = []

    async def work(mine: Iterator[tuple[int, tuple[str, str]]]) -> None:
        for index, (root, key) in mine:
            found[index] = await head(root, key)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(len(names), in_flight)):
                workers.create_task(work(todo))
    except* FeeddError as group:
        failures = [error for error in group.exceptions if isinstance(error, FeeddError)]
    if failures:
        raise failures[0]
    return cast("list[_T]", found)  # not copied, because there may be millions
