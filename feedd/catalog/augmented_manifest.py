"""SageMaker's AugmentedManifestFile: JSON Lines, where a line is a sample and its attributes are fields.

The value of an attribute whose name ends with ``-ref`` is the URL of an object, whose bytes are the field. Values of
other attributes are fields themselves; workers read these from the line. A line that is no JSON object stays a sample,
so that it is a bad sample and not a silent loss. So does a line that lacks an attribute.
"""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from feedd.catalog.manifest import MANIFEST_NAMES_MAX, Names
from feedd.catalog.urls import parse_url
from feedd.channels.augmented_lines import REF_SUFFIX, lines_in, members_of, reference_of
from feedd.dataset.line_packs import Attribute, Lines, packs_of_lines
from feedd.dataset.object_names import split_name
from feedd.dataset.ref_columns import RefColumns
from feedd.errors import BadRequest, FeeddError, NotFound
from feedd.flow.pools import CPU
from feedd.recipe.encodings import member_encoding
from feedd.recipe.recipe import default_fields
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    import msgspec

    from feedd.dataset.json_pieces import Octets
    from feedd.dataset.line_packs import LinePacks

_ATTRIBUTES_MAX: Final = 256
_NAME_CHARS_MAX: Final = 256
_PARTS: Final = 64
_SHOWN_CHARS: Final = 80
_MISSING_ETAG: Final = "missing"
_S3: Final = re.compile(r"(s3://[A-Za-z0-9._-]+)/(.+)", re.DOTALL)
_NUMBERS: Final = re.compile(rb"\[[-+0-9.eE, \t]*\]")
_FRACTION: Final = re.compile(rb"[.eE]")
_SHAPE: Final = (
    'an augmented manifest has a JSON object on each line: {"source-ref": "s3://bucket/a.jpg", "label": 0}; '
    "a JSON array of names is a plain manifest: manifest+s3://…"
)
_KINDS: Final = {b'"': "str", b"{": "json", b"n": "", b"t": "int", b"f": "int"}
"""Kind of a value by its first character; other values are numbers and lists."""

_FILES: Final = {"image": "image", "str": "text", "json": "json", "npy": "npy", "audio": "audio"}
"""Encoding of an object by the default codec for its extension."""

_WIDER: Final = {frozenset({"int", "float"}): "float", frozenset({"int64[]", "float32[]"}): "float32[]"}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class AugmentedManifest:
    """A parsed manifest.

    Attributes:
        url: URL of the manifest.
        lines: its lines.
        names: store and key of each object that the lines name, once.
        bad_count: lines that are no JSON objects.
    """

    url: str
    lines: Lines
    names: Names
    bad_count: int

    async def packs(self, manifest: ObjectRef, heads: Awaitable[list[ObjectRef | None]]) -> LinePacks:
        """Return the packs of the lines; takes microseconds for each line, in a thread.

        Args:
            manifest: version of the manifest that was parsed.
            heads: waits for the current version of each object of ``names``; None: missing.

        Raises:
            NotFound: none of the objects exists.
            FeeddError: an error of ``heads``; its hint names the line.
        """
        try:
            return await CPU.run(self._packs, manifest, await heads)
        except FeeddError as error:
            error.hint = "; ".join(filter(None, (await CPU.run(self._line_of, error.object), error.hint)))
            raise

    def _packs(self, manifest: ObjectRef, heads: list[ObjectRef | None]) -> LinePacks:
        missing = {at for at, ref in enumerate(heads) if ref is None}
        if missing:
            self._report(missing)
        found: Iterator[ObjectRef] = (
            ref or ObjectRef(root, key, 0, _MISSING_ETAG) for ref, (root, key) in zip(heads, self.names, strict=True)
        )
        packs = packs_of_lines(manifest, self.lines, RefColumns(list(found)), missing)
        while heads:  # freeing millions together would block the interpreter for other threads
            heads.pop()
        return packs

    def _line_of(self, url: str) -> str:
        """Return which line and attribute name an object first; empty: none does."""
        for target, (root, key) in enumerate(self.names):
            if ObjectRef(root, key, 0, _MISSING_ETAG).url == url:
                line, reference = np.argwhere(self.lines.targets == target)[0].tolist()
                attribute = self.lines.references[reference].name
                return f"line {self.lines.numbers[line]} of {self.url} names it as {attribute!r}"
        return ""

    def _report(self, missing: set[int]) -> None:
        first = next(
            ObjectRef(root, key, 0, _MISSING_ETAG).url for at, (root, key) in enumerate(self.names) if at in missing
        )
        if len(missing) == len(self.names):
            message = f"expected the objects that the manifest names, got none of {len(missing)}"
            raise NotFound(message, object=first, stage="source")
        _log.warning(
            "objects of a manifest are missing: their samples are bad",
            manifest=self.url,
            count=len(missing),
            first=first,
            where=self._line_of(first),
        )


def parse_lines(data: Octets, url: str) -> AugmentedManifest:
    """Return the content of a manifest; its text is not trusted. Takes microseconds for each line.

    Raises:
        BadRequest: no line is a JSON object, or there are too many lines, objects or attributes.
    """
    octets = memoryview(data)
    first = len(BOM_UTF8) if bytes(octets[: len(BOM_UTF8)]) == BOM_UTF8 else 0
    if bytes(octets[first : first + 1]) == b"[" or bytes(octets[:2]) == b"\x1f\x8b":
        got = "a JSON array" if bytes(octets[first : first + 1]) == b"[" else "a file compressed with gzip"
        raise BadRequest(f"expected JSON Lines, got {got}", object=url, hint=_SHAPE, stage="source")
    reader = _Reader(url)
    for number, start, text in lines_in(octets, url):
        reader.add(number, start, text)
    return reader.manifest()


class _Reader:
    """Collects the lines of a manifest."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._spans = array("q"), array("q"), array("q")  # start, size and number of each line
        self._digests = bytearray()
        self._kinds: dict[str, str] = {}  # by attribute whose values are in the lines
        self._references: dict[str, int] = {}
        self._encodings: list[str] = []  # of references
        self._cells = array("q"), array("q"), array("q")  # line, reference, target
        self._faults: dict[tuple[int, int], str] = {}
        self._bad: dict[int, str] = {}  # lines that are no JSON objects
        self._numbers: list[dict[str, int]] = [{} for _ in range(_PARTS)]  # one dict of millions would grow too slowly
        self._names: list[tuple[str, str]] = []

    def add(self, number: int, start: int, text: bytes) -> None:
        """Add a line."""
        at = len(self._spans[0])
        if at == MANIFEST_NAMES_MAX:
            raise BadRequest(f"expected at most {at} lines, got more", object=self._url, stage="source")
        for column, value in zip(self._spans, (start, len(text), number), strict=True):
            column.append(value)
        self._digests += hashlib.blake2b(text, digest_size=8).digest()
        try:
            members = members_of(text)
        except ValueError as error:
            self._bad[at] = str(error)
            return
        for name, raw in members.items():
            if name.endswith(REF_SUFFIX):
                self._refer(at, name, raw)
            else:
                before, kind = self._kinds.get(name), _kind(bytes(raw))
                if before != kind:
                    self._kinds[name] = kind if not before else before if not kind else _wider(before, kind)
        if len(self._kinds) + len(self._references) > _ATTRIBUTES_MAX:
            message = f"expected at most {_ATTRIBUTES_MAX} attributes, got more in line {number}"
            raise BadRequest(message, object=self._url, stage="source")

    def _refer(self, at: int, name: str, raw: msgspec.Raw) -> None:
        reference = self._references.setdefault(name, len(self._references))
        if reference == len(self._encodings):
            self._encodings.append("")
        try:
            url = reference_of(raw)
        except ValueError as error:
            self._faults[at, reference] = str(error)
            return
        target = self._target(url)
        if target < 0:
            shown = url[:_SHOWN_CHARS]
            self._faults[at, reference] = f"expected the URL of an object, like s3://bucket/key, got {shown!r}"
            return
        self._encodings[reference] = self._encodings[reference] or _encoding_of(self._names[target][1])
        for column, value in zip(self._cells, (at, reference, target), strict=True):
            column.append(value)

    def _target(self, url: str) -> int:
        """Return the number of an object; -1: the URL names none."""
        numbers = self._numbers[hash(url) % _PARTS]
        known = numbers.get(url)
        if known is not None:
            return known
        match = _S3.fullmatch(url)
        if match is not None:
            place = match[1], match[2]
        else:
            try:
                location = parse_url(url) if "://" in url else None
            except FeeddError:
                location = None
            if location is None or location.manifest or location.format or not location.key:
                return -1
            place = location.root, location.key
        if len(self._names) == MANIFEST_NAMES_MAX:
            message = f"expected at most {MANIFEST_NAMES_MAX} objects, got more"
            raise BadRequest(message, object=self._url, stage="source")
        numbers[url] = len(self._names)
        self._names.append(place)
        return numbers[url]

    def manifest(self) -> AugmentedManifest:
        """Return all lines.

        Raises:
            BadRequest: no line is a JSON object, or two attributes have the same name in lower case.
        """
        if len(self._bad) == len(self._spans[0]):
            line, fault = next(iter(self._bad.items()), (-1, "expected at least one line, got none"))
            where = f"line {self._spans[2][line]}: " if line >= 0 else ""
            raise BadRequest(f"{where}{fault}", object=self._url, hint=_SHAPE, stage="source")
        self._check_names()
        targets = np.full((len(self._spans[0]), len(self._references)), -1, np.int64)
        line_of, reference_of, target_of = (np.frombuffer(column, np.int64) for column in self._cells)
        targets[line_of, reference_of] = target_of
        for line, fault in self._bad.items():
            self._faults.update(((line, reference), fault) for reference in range(len(self._references)))
        starts, sizes, line_numbers = (np.frombuffer(column, np.int64) for column in self._spans)
        found = Lines(
            starts,
            sizes,
            line_numbers,
            np.frombuffer(self._digests, np.uint64),
            tuple(Attribute(name, member_encoding(kind or "json", name)) for name, kind in self._kinds.items()),
            tuple(Attribute(name, self._encodings[at]) for name, at in self._references.items()),
            targets,
            self._faults,
        )
        names = Names(self._names)
        while self._names:  # freeing millions together would hold the interpreter lock for too long
            self._names.pop()
        for part in self._numbers:
            while part:
                part.popitem()
        return AugmentedManifest(self._url, found, names, len(self._bad))

    def _check_names(self) -> None:
        lower: dict[str, str] = {}
        for name in (*self._kinds, *self._references):
            if not name or len(name) > _NAME_CHARS_MAX:
                message = f"expected attributes of 1 to {_NAME_CHARS_MAX} characters, got {name[:_SHOWN_CHARS]!r}"
                raise BadRequest(message, object=self._url, stage="source")
            other = lower.setdefault(name.lower(), name)
            if other != name:
                message = f"expected attributes that differ in more than case, got {other!r} and {name!r}"
                raise BadRequest(message, object=self._url, stage="source")


@functools.lru_cache(maxsize=256)
def _encoding_of(key: str) -> str:
    """Return the encoding of a field whose values are objects like this one, by the object's extension."""
    extension = split_name(key)[1]
    known = default_fields((extension,)) if extension else ()
    return _FILES.get(known[0].codec, "") if known else ""


def _kind(raw: bytes) -> str:
    """Return the kind of a value, see ``recipe.encodings.member_encoding``; empty: it is null."""
    known = _KINDS.get(raw[:1])
    if known is not None:
        return known
    fraction = _FRACTION.search(raw) is not None
    if raw[:1] == b"[":
        return "json" if _NUMBERS.fullmatch(raw) is None else "float32[]" if fraction else "int64[]"
    return "float" if fraction else "int"


def _wider(one: str, other: str) -> str:
    """Return the kind that holds the values of two kinds."""
    return _WIDER.get(frozenset({one, other}), "json")
