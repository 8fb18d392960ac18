"""Lists in one URL, as WebDataset's users write them: ``shard-{000..127}.tar``, ``{train,extra}/``, ``one::two``. Pure.

Braces work as in a shell. A range counts up or down, with an optional third number as step. If an end begins with a
zero, all numbers have as many digits as the ends. A range may also go through letters. Braces without a comma or a
range, and braces without a partner, are plain text. Groups may be nested; the last group of a URL changes first.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

URLS_MAX: Final = 100_000
_CHARACTERS_MAX: Final = 64 << 20  # of all URLs that a request stands for
_VERY_MANY: Final = 10**18
_DEPTH_MAX: Final = 8
_NUMBERS: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_LETTERS: Final = re.compile(r"([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d{1,18}))?")
_NEXT: Final = re.compile(r"::(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")
_NEXT_PATH: Final = re.compile(r"::(?=/|[a-zA-Z][a-zA-Z0-9+.-]*://)")


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of numbers, or of code points of letters."""

    numbers: range
    digits: int
    letters: bool

    def count(self) -> int:
        return len(self.numbers)

    def texts(self) -> Iterator[str]:
        for number in self.numbers:
            yield chr(number) if self.letters else f"{number:0{self.digits}d}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """A choice among several alternatives."""

    of: tuple[_Sequence, ...]

    def count(self) -> int:
        return sum(one.count() for one in self.of)

    def texts(self) -> Iterator[str]:
        return itertools.chain.from_iterable(one.texts() for one in self.of)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Parts in sequence; a text part stands for itself."""

    parts: tuple[str | _Range | _Choice, ...]

    def count(self) -> int:
        found = 1
        for part in self.parts:
            found = min(found if isinstance(part, str) else found * part.count(), _VERY_MANY)
        return found

    def texts(self) -> Iterator[str]:
        lists = [(part,) if isinstance(part, str) else tuple(part.texts()) for part in self.parts]
        return ("".join(parts) for parts in itertools.product(*lists))  # ``map`` would never give other threads a turn


def split(url: str) -> list[str]:
    """Return the URLs that ``::`` separates; ``::`` without a URL behind it is part of a name."""
    return (_NEXT_PATH if url.startswith("/") else _NEXT).split(url)


@dataclass(slots=True)
class Allowance:
    """How many URLs and characters all braces of one request may still stand for."""

    urls: int = URLS_MAX
    characters: int = _CHARACTERS_MAX


def expand(url: str, allowance: Allowance | None = None) -> list[str]:
    """Return the URLs that a URL with braces stands for, in order; without braces, the URL itself.

    Args:
        url: the URL.
        allowance: allowance of the whole request, reduced by this URL; None: this URL has its own.

    Raises:
        BadRequest: the braces stand for too many URLs, or are nested too deep.
    """
    if "{" not in url:
        return [url]
    left = allowance or Allowance()
    try:
        tree = _parsed(url, 0, len(url), _partners(url), _DEPTH_MAX)
    except RecursionError:
        message = f"expected braces nested at most {_DEPTH_MAX} deep, got more"
        raise BadRequest(message, object=_short(url), stage="source") from None
    count = tree.count()
    if count > left.urls or count * len(url) > left.characters:
        before = URLS_MAX - left.urls
        others = f", in addition to {before} of this request" if before else ""
        raise BadRequest(
            f"expected a URL that stands for at most {URLS_MAX} others, got one for {count}{others}",
            object=_short(url),
            hint="specify their common prefix, or list them in a manifest (manifest+s3://…)",
            stage="source",
        )
    left.urls, left.characters = left.urls - count, left.characters - count * len(url)
    return list(tree.texts())


def _short(url: str) -> str:
    return url if len(url) <= 400 else f"{url[:400]}…"


def _partners(url: str) -> dict[int, int]:
    """Return the position of the closing brace for each opening brace that has one."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[{}]", url):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            found[opened.pop()] = match.start()
    return found


def _parsed(url: str, start: int, end: int, partners: dict[int, int], depth: int) -> _Sequence:
    parts: list[str | _Range | _Choice] = []
    at = start
    while at < end:
        opening = url.find("{", at, end)
        if opening < 0:
            break
        closing = partners.get(opening)
        group = None if closing is None else _group(url, opening + 1, closing, partners, depth)
        if closing is None or group is None:  # the brace is plain text, but groups may follow inside
            parts.append(url[at : opening + 1])
            at = opening + 1
        else:
            parts += [url[at:opening], group]
            at = closing + 1
    return _Sequence((*parts, url[at:end]))


def _group(url: str, start: int, end: int, partners: dict[int, int], depth: int) -> _Range | _Choice | None:
    """Return the group between two braces; None: the text is not a group."""
    inside = _range(url[start:end]) if end - start < 64 else None
    if inside is not None:
        return inside
    edges = [start]
    at = start
    while at < end:
        if url[at] == "{":
            at = min(partners.get(at, at), end)
        elif url[at] == ",":
            edges.append(at + 1)
        at += 1
    if len(edges) == 1:
        return None
    if not depth:
        raise RecursionError
    ends = [edge - 1 for edge in edges[1:]] + [end]
    pairs = zip(edges, ends, strict=True)
    return _Choice(tuple(_parsed(url, low, high, partners, depth - 1) for low, high in pairs))


def _range(text: str) -> _Range | None:
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None:
        padded = any(re.match(r"-?0\d", one) for one in numbers.group(1, 2))
        digits = max(map(len, numbers.group(1, 2))) if padded else 1
        return _Range(_counted(int(numbers[1]), int(numbers[2]), numbers[3]), digits, letters=False)
    letters = _LETTERS.fullmatch(text)
    if letters is None:
        return None
    first, last, step = letters.groups()
    if first.islower() is not last.islower():
        return None
    return _Range(_counted(ord(first), ord(last), step), 0, letters=True)


def _counted(first: int, last: int, step: str | None) -> range:
    by = abs(int(step)) if step is not None else 1
    by = by or 1
    return range(first, last + 1, by) if first <= last else range(first, last - 1, -by)
