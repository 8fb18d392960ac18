"""Cuts a listing into ranges of keys that are listed at the same time. Pure.

A store returns 1,000 keys for each request, and a continuation begins where the page before ended. So a listing takes
one round trip after another, unless some requests begin at guessed keys. The guesses follow the keys seen so far: each
position of a key is a digit whose values are the characters seen there, and keys are numbers. A guess decides only how
the work is shared: the ranges always cover all keys, without overlap.
"""

from __future__ import annotations

import bisect
import math
import string
from dataclasses import dataclass
from typing import Final

_POSITIONS_MAX: Final = 48
_PAGES_LEFT_LEAST: Final = 4.0
"""A range with fewer pages left is not split: the pages at its ends are partly listed twice."""

_SERIAL_PAGES: Final = 4
"""So many pages are listed before the first split. Most listings are shorter."""

_SPLITS_LEAST: Final = 10
_SPLITS_SHARE: Final = 0.04
"""A split costs about one request. So many splits are allowed for each page that was listed, besides the first few."""

_HEX: Final = "0123456789abcdef"


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
