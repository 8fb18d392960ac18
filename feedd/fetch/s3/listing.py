"""Lists a bucket off the event loop, which millions of keys would block: one thread requests pages, others parse.

A listing that is not whole makes a shorter dataset, which nothing later can notice. botocore reads an HTML page, an
empty body and foreign XML as a listing without objects. So it gets none of a page: this module alone decides.

botocore's parser also takes 20 us per object. A dataset's first batch waits for all pages, so ``page_of`` reads what
surrounds the objects, and the next page is requested before ``objects_of`` reads them.

A store returns 1,000 keys for each request, and a continuation begins where the page before ended. So a long listing is
cut into ranges of keys that are listed at the same time. Some requests begin at guessed keys, which follow the keys
seen so far: each position of a key is a digit whose values are the characters seen there, and keys are numbers. A guess
decides only how the work is shared: the ranges always cover all keys, without overlap.

S3 Express One Zone lists keys in any order. Its objects are sorted when all are listed.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import math
import re
import string
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree as ET

from feedd.errors import BadResponse, FeeddError, Unsupported
from feedd.fetch.s3.client import S3Clients
from feedd.fetch.s3.errors import ForeignAnswer, who_answered
from feedd.fetch.s3.session import ANSWER_BYTES_MAX
from feedd.fetch.threaded import iterate_in_thread
from feedd.flow.pools import CPU
from feedd.values import ArchivedRef, ObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.client import BucketFacts
    from feedd.fetch.s3.errors import Answerer, RequestContext

    Ask = Callable[[Mapping[str, str]], Coroutine[object, object, "Page"]]
    """Sends a request for a page with these arguments besides bucket and prefix."""

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
_POSITIONS_MAX: Final = 48
_PAGES_LEFT_LEAST: Final = 4.0
"""A range with fewer pages left is not split: the pages at its ends are partly listed twice."""
_SERIAL_PAGES: Final = 4
"""So many pages are listed before the first split. Most listings are shorter."""
_SPLITS_LEAST: Final = 10
_SPLITS_SHARE: Final = 0.04
"""A split costs about one request. So many splits are allowed for each page that was listed, besides the first few."""
_HEX: Final = "0123456789abcdef"
IN_FLIGHT_MAX: Final = 16
"""Pages of a listing that are requested at the same time."""
_BUFFERED_MAX: Final = 4096
"""Compressed pages that wait for earlier ones, some 30 KB each. With more, only the first range is listed."""
_V1_HINT: Final = "the store has only ListObjects V1: name the objects in a manifest (manifest+s3://)"
_PAGES_AHEAD_COUNT: Final = 8
_PAGE_COUNT: Final = 1000
_DIRECTORY_BUCKET: Final = "--x-s3"


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


class KeySpace:
    """Keys below a prefix as numbers in ascending order, as far as the characters seen tell.

    Args:
        prefix: the start of all keys.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: list[set[str]] = []
        self._alphabets: list[str] = []

    def learn(self, key: str) -> None:
        """Take over the characters of a key."""
        for position, char in enumerate(key[len(self._prefix) :][:_POSITIONS_MAX]):
            if position == len(self._seen):
                self._seen.append(set())
                self._alphabets.append("")
            if char not in self._seen[position]:
                self._seen[position].add(char)
                self._alphabets[position] = _alphabet(self._seen[position])

    @property
    def top(self) -> int:
        """A number above all keys of these characters."""
        return math.prod(map(len, self._alphabets))

    def number(self, key: str) -> int:
        """Return the number of a key; a character that was not seen counts as the next lower one."""
        text, found = key[len(self._prefix) :], 0
        for position, alphabet in enumerate(self._alphabets):
            digit = 0
            if position < len(text):
                digit = max(bisect.bisect_right(alphabet, text[position]) - 1, 0)
            found = found * len(alphabet) + digit
        return found

    def key(self, number: int) -> str:
        """Return the key of a number."""
        chars = []
        for alphabet in reversed(self._alphabets):
            number, digit = divmod(number, len(alphabet))
            chars.append(alphabet[digit])
        return self._prefix + "".join(reversed(chars))


def _alphabet(seen: set[str]) -> str:
    """Return the characters that a position probably has, ascending: a digit seldom comes alone."""
    if not any(char.isdecimal() and char.isascii() for char in seen):
        return "".join(sorted(seen))
    letters = {char for char in seen if not (char.isdecimal() and char.isascii())}
    return "".join(sorted(letters | set(_HEX if letters & set(_HEX) else string.digits)))


@dataclass(slots=True, eq=False)
class KeyRange:
    """A range of keys, listed page by page.

    Attributes:
        after: the range begins after this key; empty: with the first key.
        end: its last possible key; None: it ends with the listing.
        position: the last key that was listed; empty: none yet.
        page_numbers: distance between the first and the last key of the latest page, as numbers.
        done: all its pages are listed.
        answered: the store has answered for it.
    """

    after: str
    end: str | None = None
    position: str = ""
    page_numbers: int = 0
    done: bool = False
    answered: bool = False


class KeyRanges:
    """The ranges of one listing, in order. The caller requests their pages and reports each.

    Args:
        prefix: prefix of the listing.
        start_after: the listing begins after this key.
    """

    def __init__(self, prefix: str, start_after: str) -> None:
        self._space = KeySpace(prefix)
        self.ranges = [KeyRange(start_after)]
        self._first = ""
        self._page_count = self._split_count = 0

    def listed(self, one: KeyRange, first: str, last: str, *, more: bool) -> None:
        """Report a page of a range.

        Args:
            one: the range.
            first: the first key of the page; empty: the page has no keys.
            last: its last key.
            more: whether the store has more keys after it.
        """
        self._page_count += 1
        one.answered = True
        if first:
            self._first = self._first or first
            self._space.learn(first)
            self._space.learn(last)
            one.position = last
            one.page_numbers = max(self._space.number(last) - self._space.number(first), 1)
        one.done = not more or (one.end is not None and last >= one.end)

    def split(self) -> KeyRange | None:
        """Return a new range that may be listed at once, cut off the end of another; None: no cut is worth it."""
        allowed_count = _SPLITS_LEAST + _SPLITS_SHARE * self._page_count
        if self._page_count < _SERIAL_PAGES or self._split_count >= allowed_count:
            return None
        open_ranges = [one for one in self.ranges if one.answered and not one.done and one.position]
        for one in sorted(open_ranges, key=self._pages_left, reverse=True):
            if self._pages_left(one) < _PAGES_LEFT_LEAST:
                return None
            middle = self._middle(one)
            if one.position < middle and (one.end is None or middle < one.end):
                new = KeyRange(middle, one.end)
                one.end = middle
                self.ranges.insert(self.ranges.index(one) + 1, new)
                self._split_count += 1
                return new
        return None

    def _top(self, one: KeyRange) -> int:
        return self._space.top if one.end is None else self._space.number(one.end)

    def _pages_left(self, one: KeyRange) -> float:
        left = self._top(one) - self._space.number(one.position)
        return left / one.page_numbers

    def _middle(self, one: KeyRange) -> str:
        """Return a key between the position of a range and its end; close to the position if the end is not known."""
        low, high = self._space.number(one.position), self._top(one)
        if one.end is not None:
            return self._space.key((low + high) // 2)
        start = self._space.number(self._first)
        middle = start + math.isqrt(max(low - start, 1) * max(high - start, 1))
        return self._space.key(middle) if low < middle < high else ""


_LAST_PAGE: Final = Page(b"", "", 0, "", "", truncated=False, token="")


@dataclass(slots=True, eq=False)
class _Stand:
    """How far a range is.

    Attributes:
        token: continues after the latest page; empty: the range begins, or goes on after its last key.
        more: the store has more keys after the latest page.
        tokens: tokens since the latest page that had keys.
        pages: pages that wait for earlier ranges.
        failed: the latest request failed.
        doubted: the last key after which the listing seemed to end with an empty page; empty: there was none.
    """

    token: str = ""
    more: bool = False
    tokens: set[str] = field(default_factory=set)
    pages: deque[Page] = field(default_factory=deque)
    failed: bool = False
    doubted: str = ""

    def follow(self, page: Page, position: str) -> None:
        """Take over how the listing goes on after a page.

        A truncated page promises keys. An empty last page after it may come from a server that does not know the
        token, so the keys after the last one are requested without it.

        Args:
            page: the page.
            position: the last key of the range before this page; empty: there is none.

        Raises:
            BadResponse: the page leads nowhere.
            Unsupported: the store gives no token, and ignores where a listing shall begin.
        """
        if self.token and position not in {"", self.doubted} and not page.first and not page.truncated:
            self.token, self.more, self.doubted, self.tokens = "", True, position, set()
            return
        if position and not self.token and page.first and page.first <= position:
            message = "expected keys after the last one, got earlier keys: a truncated page had no continuation token"
            raise Unsupported(message, hint=_V1_HINT, stage="source")
        if page.truncated and not page.token and not page.first:
            message = "expected keys or a continuation token in a truncated page, got neither"
            raise BadResponse(message, hint=_V1_HINT, stage="source")
        if page.truncated and page.token and page.token in self.tokens | {self.token}:
            message = "expected a new continuation token, got one that was used before"
            raise BadResponse(message, hint="the listing would never end", stage="source")
        self.tokens = {page.token} if page.first else self.tokens | {page.token}
        self.token, self.more = page.token, page.truncated


class RangeListing:
    """One listing. All methods run on one loop.

    Args:
        ask: sends a request.
        prefix: prefix of the listing.
        start_after: the listing begins after this key.
        in_flight_max: bound on concurrent requests; 1: one page after another.
        sorts: the store lists in the order of keys, and can begin after a key.
    """

    def __init__(
        self, ask: Ask, prefix: str, start_after: str, in_flight_max: int = IN_FLIGHT_MAX, *, sorts: bool = True
    ) -> None:
        self._ask, self._sorts = ask, sorts
        self._ranges = KeyRanges(prefix, start_after)
        self._in_flight_max = in_flight_max
        self._stands: dict[KeyRange, _Stand] = {}
        self._tasks: dict[asyncio.Task[Page], KeyRange] = {}
        self._ending: list[asyncio.Task[Page]] = []
        self._root = self._ranges.ranges[0]
        self._confirmed = False  # the store begins pages where they are asked to begin
        self._buffered_count = 0

    async def pages(self) -> AsyncGenerator[tuple[Page, str | None], None]:
        """Yield all pages in the order of their keys, each with the last key that belongs to it; None: all do.

        Raises:
            FeeddError: what ``ask`` raised for the first range that is not complete, or its pages lead nowhere.
        """
        try:
            while self._ranges.ranges:
                self._begin()
                if self._tasks:
                    ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        if (one := self._tasks.pop(task, None)) is not None:
                            self._take(one, task)
                while (found := self._next()) is not None:
                    yield found
        finally:
            await self._cancel()

    def _begin(self) -> None:
        """Request a page of each open range, of the first one above all, and split ranges while there is room."""
        busy = set(self._tasks.values())
        for number, one in enumerate(self._ranges.ranges):
            waits = number and (self._stand(one).failed or self._buffered_count >= _BUFFERED_MAX)
            if one.done or one in busy or waits or (number and len(self._tasks) >= self._in_flight_max):
                continue
            self._request(one)
        while len(self._tasks) < self._in_flight_max and self._buffered_count < _BUFFERED_MAX:
            if not self._confirmed and len(self._ranges.ranges) > 1:
                return
            new = self._ranges.split()
            if new is None:
                return
            self._request(new)

    def _request(self, one: KeyRange) -> None:
        stand = self._stand(one)
        after = one.position or one.after
        query = {"ContinuationToken": stand.token} if stand.token else {"StartAfter": after} if after else {}
        # ``pages`` waits for the end of each
        self._tasks[asyncio.get_running_loop().create_task(self._ask(query))] = one

    def _take(self, one: KeyRange, task: asyncio.Task[Page]) -> None:
        """Take over the end of a request."""
        stand, first = self._stand(one), self._ranges.ranges[0] is one
        try:
            page = task.result()
            if stand.doubted == one.position and page.first and page.first <= one.position:
                page = _LAST_PAGE  # the store ignores where to begin, and can say no more
            stand.follow(page, one.position if self._sorts else "")
        except FeeddError:
            # The store may be asked for too much. The range waits until it is the first, and is then requested again.
            self._in_flight_max = max(1, self._in_flight_max // 2)
            if first:
                raise
            stand.failed = True
            if not self._confirmed:
                self._serially()
            return
        stand.failed = False
        if one is not self._root and not one.answered:
            if page.first and page.first <= one.after:
                self._serially()
                return
            self._confirmed = True
        self._ranges.listed(one, page.first, page.last, more=stand.more)
        if page.first:
            stand.pages.append(page if first else page.squeezed())
            self._buffered_count += 1

    def _serially(self) -> None:
        """Go on with the first range alone: the store ignores where a listing shall begin."""
        self._in_flight_max = 1
        self._ending = [task for task, one in self._tasks.items() if one is not self._root]
        for task in self._ending:
            task.cancel()
            del self._tasks[task]
        self._root.end, self._root.done = None, self._root.answered and not self._stand(self._root).more
        self._ranges.ranges[:] = [one for one in self._ranges.ranges if one is self._root]  # none: it had all keys

    def _next(self) -> tuple[Page, str | None] | None:
        """Return the next page in the order of keys, or None if it is not listed yet."""
        while self._ranges.ranges:
            one = self._ranges.ranges[0]
            stand = self._stand(one)
            held = not self._confirmed and one.end is not None and one.position >= one.end
            if held:
                return None  # without ranges, more of the page belongs to it
            if stand.pages:
                self._buffered_count -= 1
                return stand.pages.popleft(), one.end
            if not one.done:
                return None
            del self._ranges.ranges[0]
            self._stands.pop(one, None)
        return None

    def _stand(self, one: KeyRange) -> _Stand:
        return self._stands.setdefault(one, _Stand())

    async def _cancel(self) -> None:
        tasks, self._tasks = [*self._tasks, *self._ending], {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(FeeddError, asyncio.CancelledError):
                await task


async def list_pages(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[list[ObjectRef], None]:
    """Yield non-empty pages of the keys under ``request.url`` that come after ``start_after``.

    Folder markers (zero bytes, key ending in ``/``) are left out. The thread has ended when the generator is closed.

    Raises:
        Unsupported: the store lists out of order, without etags, or cannot continue a listing.
        BadResponse: a page is not whole, or an object has no key or size.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """
    sorts = not is_directory_bucket(bucket)
    root, order = f"s3://{bucket}", _Order(request, start_after)
    unsorted: list[ObjectRef] = []

    def make() -> AsyncGenerator[tuple[Page, str | None], None]:
        return _answers(bucket, request, limits, start_after if sorts else "", facts)

    answers = iterate_in_thread(make, name=f"feedd-list-{bucket}", ahead_count=_PAGES_AHEAD_COUNT)
    try:
        async with contextlib.aclosing(answers):
            async for page, end in answers:  # further pages are being requested meanwhile
                refs = await CPU.run(_refs, page, end, root)
                if not sorts:
                    unsorted += refs
                elif wanted := order.keep(refs):
                    yield wanted
    except (BadResponse, Unsupported) as error:
        error.object = request.url  # what judges a page does not know the URL
        raise
    for wanted in await CPU.run(_sorted_pages, unsorted, request.url.removeprefix(f"{root}/"), order):
        yield wanted


def is_directory_bucket(bucket: str) -> bool:
    """Whether a bucket is one of S3 Express One Zone: it lists keys in any order, and only below folders."""
    return bucket.endswith(_DIRECTORY_BUCKET)


async def _answers(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[tuple[Page, str | None], None]:
    """Request pages, with a client of the thread's own loop; runs in the thread."""
    s3 = limits.for_bucket(bucket)
    prefix = request.url.removeprefix(f"s3://{bucket}/")
    fixed = {"Bucket": bucket, "Prefix": prefix}
    if s3.requester_pays:
        fixed["RequestPayer"] = "requester"
    sorts = not is_directory_bucket(bucket)
    if not sorts:
        fixed["Prefix"] = prefix[: prefix.rfind("/") + 1]
    async with contextlib.aclosing(S3Clients(s3, limits, facts)) as clients:

        async def ask(query: Mapping[str, str]) -> Page:
            async def send(client: Any) -> Page:  # noqa: ANN401 - see open_client
                client.meta.events.register(EVENT, take, unique_id=EVENT)
                return page_of(await client.list_objects_v2(**fixed, **query), fixed["Prefix"])

            page = await clients.call(send, request, limits.listing_deadline_s)
            if page.truncated and not page.token and not sorts:
                raise BadResponse("expected a continuation token in a truncated page, got none", stage="source")
            return page

        listing = RangeListing(ask, prefix, start_after, IN_FLIGHT_MAX if sorts else 1, sorts=sorts)
        async with contextlib.aclosing(listing.pages()) as pages:
            async for page in pages:
                yield page


def _refs(page: Page, end: str | None, root: str) -> list[ObjectRef]:
    """Return the objects of a page up to a key; takes about 10 microseconds per object."""
    return [
        (ArchivedRef if one.archived else ObjectRef)(
            root, one.key, one.size_bytes, one.etag.removeprefix("W/").strip('"')
        )
        for one in objects_of(page)
        if end is None or one.key <= end
    ]


def _sorted_pages(refs: list[ObjectRef], prefix: str, order: _Order) -> list[list[ObjectRef]]:
    """Return the objects below a prefix in byte order."""
    wanted = order.keep(sorted((ref for ref in refs if ref.key.startswith(prefix)), key=lambda ref: ref.key))
    return [wanted[at : at + _PAGE_COUNT] for at in range(0, len(wanted), _PAGE_COUNT)]


class _Order:
    """Checks that keys rise in UTF-8 byte order across pages; drops folder markers and keys up to ``start_after``."""

    def __init__(self, request: RequestContext, start_after: str) -> None:
        self._request = request
        self._start_after = start_after
        self._last = ""

    def keep(self, refs: list[ObjectRef]) -> list[ObjectRef]:
        """Return the wanted refs; the order of all refs is checked."""
        for ref in refs:
            # str compares by code point, which equals the order of UTF-8 bytes
            if ref.key <= self._last:
                raise Unsupported(
                    f"expected keys in byte order, got {ref.key!r} after {self._last!r}",
                    object=self._request.url,
                    hint="this store lists out of order: name the objects in a manifest",
                    stage="source",
                )
            self._last = ref.key
        return [ref for ref in refs if ref.key > self._start_after and (ref.size_bytes or ref.key[-1:] != "/")]
