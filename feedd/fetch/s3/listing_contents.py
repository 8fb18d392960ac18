"""Judges a page of a listing, and reads its objects.

A listing that is not whole makes a shorter dataset, which nothing later can notice. botocore reads an HTML page, an
empty body and foreign XML as a listing without objects. So it gets none of a page: this module alone decides.

botocore's parser also takes 20 us per object. A dataset's first batch waits for all pages, so ``page_of`` reads what
surrounds the objects, and the next page is requested before ``objects_of`` reads them.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree as ET

from feedd.errors import BadResponse, Unsupported
from feedd.fetch.s3.sdk_errors import ForeignAnswer
from feedd.fetch.s3.sdk_transports import ANSWER_BYTES_MAX
from feedd.fetch.s3.who_answered import who_answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.fetch.s3.who_answered import Answerer

EVENT: Final = "before-parse.*.ListObjectsV2"
"""Event of botocore; the wildcard runs before all handlers for S3, and so before botocore reads the body."""
_PAGE: Final = "FeeddPage"
_ROOT: Final = "ListBucketResult"
ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects must be restored before they can be read; GLACIER_IR is none of them."""

_BEGIN, _END = b"<Contents>", b"</Contents>"
_ERROR: Final = re.compile(rb"\s*(<\?xml[^>]*>)?\s*<Error[\s>/]")
_SINGLE: Final = frozenset({"IsTruncated", "NextContinuationToken", "KeyCount", "EncodingType"})
_SECRET: Final = re.compile(r"[A-Za-z0-9+_=-]{24,}")
_SHOWN_CHARS_MAX: Final = 80
_TAGS_MAX: Final = 250_000  # a page of 1,000 objects has some 24,000; a tree takes a hundred bytes for each
_DIGITS_MAX: Final = 16  # ten petabytes: a larger size is a mistake, and sums of such sizes would overflow
_ENDPOINT_HINT: Final = "check endpoint_url: this address may not be an S3 store, or a proxy answers in its place"
_OUTSIDE_HINT: Final = (
    "the store, or a gateway before it, ignores the prefix of a listing: name the objects in a manifest"
)
_ETAG_HINT: Final = "name the objects in a manifest (manifest+s3://): then each object is asked for its own etag"


class Listed(NamedTuple):
    """One object of a page."""

    key: str
    size_bytes: int
    etag: str
    archived: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is whole, as far as what surrounds its objects shows; ``objects_of`` checks the objects.

    Attributes:
        body: the XML.
        prefix: the keys begin so.
        count: number of objects.
        first: key of the first object; empty: there is none.
        last: key of the last object.
        truncated: the store has more keys.
        token: requests the next page; empty: the store gave none.
        compressed: the body is compressed.
    """

    body: bytes
    prefix: str
    count: int
    first: str
    last: str
    truncated: bool
    token: str
    compressed: bool = False

    def squeezed(self) -> Page:
        """Return the page in a tenth of its memory."""
        return self if self.compressed else replace(self, body=zlib.compress(self.body, 1), compressed=True)


def take(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handle ``EVENT``: keep the body for ``page_of``. botocore reads errors, also those with status 200."""
    body: bytes = response_dict["body"]
    if response_dict["headers"].get("content-encoding", "").strip().lower() == "gzip":  # a gateway did it, unasked
        body = response_dict["body"] = _unpacked(body)
    if response_dict["status_code"] < 300 and not _ERROR.match(body):
        response_dict["body"] = b""
        customized_response_dict[_PAGE] = (response_dict["status_code"], response_dict["headers"], body)


def _unpacked(body: bytes) -> bytes:
    """Return a gzip stream's content, or the body itself if it is none, is cut off, or is too long."""
    reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = reader.decompress(body, ANSWER_BYTES_MAX)
    except zlib.error:
        return body
    return content if reader.eof else body


def page_of(answer: Mapping[str, Any], prefix: str) -> Page:
    """Return the page of an answer that ``take`` has handled.

    Args:
        answer: the answer.
        prefix: the requested prefix.

    Raises:
        BadResponse: the answer is not a whole page of a listing.
    """
    status, headers, body = answer[_PAGE]
    try:
        return _page(status, body, prefix)
    except (_NotWholeError, ET.ParseError, LookupError, ValueError) as error:  # of encodings, too
        why = str(error) if isinstance(error, _NotWholeError) else f"it is not well-formed XML: {error}"
        answerer = who_answered(status, headers, body)
        message = f"expected a whole page of a listing, got {_described(answerer, body)} ({why})"
        foreign = ForeignAnswer(status, headers, answerer) if answerer.is_foreign else error
        raise BadResponse(message, hint=answerer.hint or _ENDPOINT_HINT, stage="source") from foreign


def objects_of(page: Page) -> list[Listed]:
    """Return the objects of a page; takes microseconds per object.

    Raises:
        BadResponse: an object is not described the way S3 does, lies outside of the prefix, or is missing.
        Unsupported: an object has no etag.
    """
    body = zlib.decompress(page.body) if page.compressed else page.body
    try:
        tree = ET.fromstring(body)  # noqa: S314 - as botocore's parser does; ``_page`` refuses DTDs
        archived = _archived(tree) if any(f">{name}<".encode() in body for name in ARCHIVED) else None
        found = _objects(tree, page.prefix, archived)
    except (ET.ParseError, LookupError, ValueError) as error:
        why = f"an object without {_local(str(error.args[0]))}" if isinstance(error, KeyError) else str(error)
        message = f"expected objects with key, size and etag, got {why}"
        raise BadResponse(message, stage="source") from error
    if len(found) != page.count:
        raise BadResponse(f"expected {page.count} objects in a page, got {len(found)}", stage="source")
    return found


def _described(answerer: Answerer, body: bytes) -> str:
    """Return the sender of an answer and its first bytes, in one line without secrets."""
    if not body:
        return f"an empty body from {answerer.name}"
    first = _shown(body[: 4 * _SHOWN_CHARS_MAX].decode("utf-8", "replace"))
    return f"one from {answerer.name}, which begins with {first!r}"


class _NotWholeError(Exception):
    """The answer is not a whole page; the text says why."""


def _page(status: int, body: bytes, prefix: str) -> Page:
    if status != 200:
        raise _NotWholeError(f"its status is {status}")
    if b"<!DOCTYPE" in body or b"\0" in body:  # entities, also in encodings that hide them
        raise _NotWholeError("it has a document type or zero bytes")
    if body.count(b"<") > _TAGS_MAX:
        raise _NotWholeError(f"it has more than {_TAGS_MAX} tags")
    head, _begin, rest = body.partition(_BEGIN)
    objects, end, tail = rest.rpartition(_END)
    count = objects.count(_END) + 1
    frame = body
    # A page that may hold anything else between two objects, a comment or CDATA, is read whole.
    plain = end and b"<!" not in body and count - 1 == objects.count(_BEGIN) == objects.count(_END + _BEGIN)
    if plain:
        ends = [objects] if count == 1 else [objects.partition(_END)[0], objects.rpartition(_BEGIN)[2]]
        frame = b"".join((head, *(_BEGIN + one + _END for one in ends), tail))
    root = ET.fromstring(frame)  # noqa: S314 - see ``objects_of``
    fields = _fields(root)
    space = root.tag[: root.tag.find("}") + 1]
    items = root.findall(f"{space}Contents")
    if not plain:
        count = len(items)
    if (told := fields.get("KeyCount", str(count)).strip()) != str(count):
        raise _NotWholeError(f"its KeyCount is {_shown(told)!r}, but it has {count} objects")
    encoded = fields.get("EncodingType") == "url"
    keys = [_decoded(item.findtext(f"{space}Key") or "", encoded=encoded) for item in items]
    first, last = (keys[0], keys[-1]) if keys else ("", "")
    if count and not (first and last):
        raise _NotWholeError("it has objects without a key")
    token = fields.get("NextContinuationToken", "")
    return Page(body, prefix, count, first, last, fields["IsTruncated"] == "true", token)


def _fields(root: ET.Element) -> dict[str, str]:
    """Return the texts of what a page says besides its objects; they are checked as far as each stands alone."""
    name = _local(root.tag)
    if name != _ROOT:
        raise _NotWholeError(f"its root is {_shown(name)!r}, not {_ROOT}")
    found: dict[str, str] = {}
    for child in root:
        field = _local(child.tag)
        if field == "CommonPrefixes" and "".join(child.itertext()).strip():
            raise _NotWholeError("it has common prefixes in place of keys")
        if field in _SINGLE:
            if field in found:
                raise _NotWholeError(f"it has {field} twice")
            found[field] = child.text or ""
    truncated = found.get("IsTruncated", "").strip().lower()
    truncated = {"1": "true", "0": "false"}.get(truncated, truncated)  # booleans of XML have two forms
    if truncated not in {"true", "false"}:
        raise _NotWholeError(f"IsTruncated is {_shown(truncated)!r}" if truncated else "it has no IsTruncated")
    return found | {"IsTruncated": truncated}


def _archived(page: ET.Element) -> list[bool]:
    """Return which objects of a page are of an archived storage class."""
    space = page.tag[: page.tag.find("}") + 1]
    return [item.findtext(f"{space}StorageClass") in ARCHIVED for item in page.iterfind(f"{space}Contents")]


def _objects(page: ET.Element, prefix: str, archived: list[bool] | None) -> list[Listed]:
    space = page.tag[: page.tag.find("}") + 1]
    contents, key, size, etag = (space + name for name in ("Contents", "Key", "Size", "ETag"))
    names, sizes, tags = [], [], []
    for item in page:
        if item.tag == contents:
            told = {child.tag: child.text or "" for child in item}
            names.append(told[key])
            sizes.append(told[size])
            tags.append(told.get(etag, ""))
    if page.findtext(space + "EncodingType") == "url":
        names = [_decoded(name, encoded=True) if "%" in name or "+" in name else name for name in names]
    _check(names, sizes, tags, prefix)
    if archived is None:
        return list(map(Listed, names, map(int, sizes), tags))
    return list(map(Listed, names, map(int, sizes), tags, archived))


def _check(names: list[str], sizes: list[str], tags: list[str], prefix: str) -> None:
    """Check the columns of a page; together, because that takes a tenth of the time."""
    if not names:
        return
    if not (min(names).startswith(prefix) and max(names).startswith(prefix)):  # then all between do
        message = f"expected keys that begin with {prefix!r}, got others"
        raise BadResponse(message, hint=_OUTSIDE_HINT, stage="source")
    digits = "".join(sizes)
    if not (digits.isascii() and digits.isdecimal()) or "" in sizes or len(max(sizes, key=len)) > _DIGITS_MAX:
        wrong = next(one for one in sizes if not (one.isascii() and one.isdecimal()) or len(one) > _DIGITS_MAX)
        raise ValueError(f"a size of {_shown(wrong)!r}")
    marks = "".join(tags)
    if not (marks.isascii() and marks.isprintable()):
        raise ValueError("an etag with characters that cannot be printed")
    if len(min(tags, key=len)) <= len('W/""') and not all(tag.removeprefix("W/").strip('"') for tag in tags):
        message = "expected an etag for each listed object, got none"
        raise Unsupported(message, hint=_ETAG_HINT, stage="source")


def _decoded(name: str, *, encoded: bool) -> str:
    """Return a key. In form encoding, AWS and MinIO write a space as "+", Ceph as "%20", all write a plus as "%2B"."""
    return unquote_to_bytes(name.replace("+", " ")).decode() if encoded else name


def _local(tag: str) -> str:
    return tag[tag.find("}") + 1 :]


def _shown(text: str) -> str:
    """Return foreign text as one short printable line, without what may be a secret."""
    plain = "".join(char if char.isprintable() else " " for char in text[:_SHOWN_CHARS_MAX])
    return _SECRET.sub("(redacted)", " ".join(plain.split()))
