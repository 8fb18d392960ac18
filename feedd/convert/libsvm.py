"""Converts libsvm text: a line ``label index:value ...`` becomes a row of a table.

Fields are ``label`` (float32), ``indices`` (``int64[]``) and ``values`` (``float32[]``). ``qid`` is a field if all
lines of a shard have it. Indices are kept as written: most files count from 1. A ``#`` starts a comment, and blank
lines are skipped. Two lists of labels, and weights after a label, are not supported. A line of another kind is a bad
sample; all other rows keep their values and places. It is an error only if most lines are bad.
"""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.convert.bad_rows import are_most
from feedd.convert.memory_limits import check_memory
from feedd.convert.table_writer import Piece, TableWriter
from feedd.convert.wanted_ranges import WholeObject
from feedd.errors import BadShard
from feedd.formats.missing_reasons import HAS, Why, marks_of
from feedd.formats.table import NOTE_CHARS_MAX, NOTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from feedd.protocols import PartialObject, ShardWriter

_PIECE_BYTES: Final = 4 << 20
_LINE_BYTES_MAX: Final = 256 << 20
_BYTES_PER_CHARACTER: Final = 48
"""Memory to parse a text, numbers included, per character of the text."""
_TRIES_MAX: Final = 4000
_QID: Final = b" qid:"
_LF, _HASH, _COLON = b"\n#:"
_BLANKS: Final = np.isin(np.arange(256), np.frombuffer(b" \t\r\n\v\f", np.uint8))
_NUMERIC: Final = np.isin(np.arange(256), np.frombuffer(b" \t\r\n\v\f0123456789+-.eE:naifNAIFty", np.uint8))


class LibsvmConverter(WholeObject):
    """``protocols.ShardConverter`` of libsvm's text; stateless."""

    @property
    def name(self) -> str:
        """``libsvm``."""
        return "libsvm"

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write a table of all rows.

        Raises:
            BadShard: most lines are bad, or only some have qid.
        """
        del params
        parts: list[_Lines] = []
        held_bytes = 0
        for at, text in _pieces(held.data, url):
            check_memory(held_bytes + len(text) * _BYTES_PER_CHARACTER, out, url, "its numbers")
            parts.append(_Lines(text, at, url))
            held_bytes += parts[-1].size_bytes
        rows, bad = sum(len(part.labels) for part in parts), sum(part.bad_count for part in parts)
        error = next((part.error for part in parts if part.error is not None), None)
        if error is not None and (are_most(bad, rows) or bad == rows):
            raise error
        tagged = {part.queries is not None for part in parts if part.bad_count < len(part.labels)}
        if len(tagged) > 1:
            got = "lines with and without qid"
            raise BadShard(f"expected qid in all lines or in none, got {got}", object=url, stage="decode")
        return _write(parts, TableWriter(out, rows, url), tagged=True in tagged)


def _write(parts: list[_Lines], writer: TableWriter, *, tagged: bool) -> str:
    writer.fixed("label", "float32", 4, (Piece(part.labels, None, part.marks) for part in parts))
    writer.variable("indices", "int64[]", (Piece(part.indices, 8 * part.counts, part.marks) for part in parts))
    writer.variable("values", "float32[]", (Piece(part.values, 4 * part.counts, part.marks) for part in parts))
    if tagged:
        none = (np.zeros(len(part.labels), np.int64) if part.queries is None else part.queries for part in parts)
        writer.fixed("qid", "int64", 8, (Piece(own, None, part.marks) for own, part in zip(none, parts, strict=True)))
    for part, first in zip(parts, itertools.accumulate((len(part.labels) for part in parts), initial=0), strict=False):
        writer.note(((first + row, line) for row, line in part.notes), whole=True)
    return writer.finish()


def _pieces(data: memoryview, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, some megabytes at a time, with their offset."""
    at = 0
    while at < len(data):
        size = _PIECE_BYTES
        text = bytes(data[at : at + size])
        while at + len(text) < len(data) and b"\n" not in text:
            size *= 2
            if size > _LINE_BYTES_MAX:
                raise BadShard(f"expected lines below {size >> 1} bytes at byte {at}", object=url, stage="decode")
            text = bytes(data[at : at + size])
        if at + len(text) < len(data):
            text = text[: text.rindex(b"\n") + 1]
        yield at, text
        at += len(text)


class _WrongError(Exception):
    """Some lines are not valid rows.

    Args:
        lines: their numbers in the text.
        got: the content of one of them.
    """

    def __init__(self, lines: NDArray[np.intp], got: str) -> None:
        super().__init__(got)
        self.lines, self.got = lines, got


class _Lines:
    """Parses many lines at once.

    Attributes:
        labels: float32[rows].
        queries: int64[rows]; None: lines have no qid.
        counts: int64[rows], pairs of each row.
        indices: int64[pairs].
        values: float32[pairs].
        marks: uint8[rows], which rows are bad and why, see ``formats.missing_reasons``; None: no row is bad.
        notes: the first bad rows with their text.
        error: the error for the first bad rows; None: no row is bad.
    """

    def __init__(self, text: bytes, at: int, url: str) -> None:
        self._at, self._url = at, url
        self.error: BadShard | None = None
        text, tagged = _prepared(text)
        self.labels, self.values = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self.counts, self.indices = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.queries: NDArray[np.int64] | None = None
        words, given = _Words(text), text
        rows, bad = words.rows, np.zeros(0, np.intp)
        while True:  # each round finds one kind of error in all lines
            try:
                self._take(words, text, tagged=tagged)
                break
            except _WrongError as wrong:
                self.error = self.error or self._wrong(wrong.got)
                bad = np.union1d(bad, wrong.lines)
                text = _without(text, wrong.lines)
                words = _Words(text)
        self.marks: NDArray[np.uint8] | None = None
        self.notes: list[tuple[int, str]] = []
        if len(bad):
            is_bad = np.isin(rows, bad)
            self.marks = marks_of(Why.LINE, is_bad)
            starts = np.concatenate(([0], np.flatnonzero(np.frombuffer(given, np.uint8) == _LF) + 1))
            for row in np.flatnonzero(is_bad)[:NOTES_MAX].tolist():
                line = given[int(starts[rows[row]]) :][:NOTE_CHARS_MAX].split(b"\n", 1)[0]
                self.notes.append((row, repr(line.decode("utf-8", "backslashreplace").strip())))
            self.labels, self.counts = _spread(self.labels, is_bad), _spread(self.counts, is_bad)
            self.queries = None if self.queries is None else _spread(self.queries, is_bad)

    def _take(self, words: _Words, text: bytes, *, tagged: bool) -> None:
        """Separate labels, queries and pairs.

        Raises:
            _WrongError: some lines are not valid rows.
        """
        leads, in_word = words.leads, words.colons
        words.check(tagged=tagged)
        numbers = _numbers(text, len(in_word) + int(in_word.sum()))
        at = np.cumsum(in_word + 1) - in_word - 1  # of each word's first number
        with np.errstate(over="ignore"):
            self.labels = numbers[at[leads]].astype(np.float32)
        tags = leads + 1
        self.queries = _integers(numbers[at[tags]], words.line[tags]) if tagged else None
        pairs = at[in_word == 1]
        self.indices = _integers(numbers[pairs], words.line[in_word == 1])
        with np.errstate(over="ignore"):
            self.values = numbers[pairs + 1].astype(np.float32)
        self.counts = np.diff(np.append(leads, len(in_word))) - (2 if tagged else 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parsed numbers."""
        queries = 0 if self.queries is None else self.queries.nbytes
        return int(self.labels.nbytes + queries + self.counts.nbytes + self.indices.nbytes + self.values.nbytes)

    @property
    def bad_count(self) -> int:
        """Number of bad rows."""
        return 0 if self.marks is None else int((self.marks != HAS).sum())

    def _wrong(self, got: str) -> BadShard:
        message = f"expected lines of 'label index:value ...' from byte {self._at} on, got {got}"
        return BadShard(message, object=self._url, stage="decode")


class _Words:
    """The words of a text, and their lines.

    Attributes:
        first: offset of each word.
        line: line of each word, counted from 0.
        leads: index of the first word of each line that has words.
        colons: number of colons in each word.
    """

    def __init__(self, text: bytes) -> None:
        raw = self._raw = np.frombuffer(text, np.uint8)
        blank = np.concatenate(([True], _BLANKS[raw]))
        first = self.first = np.flatnonzero(blank[:-1] & ~blank[1:])
        colons = np.concatenate((np.zeros(1, np.int64), np.cumsum(raw == _COLON)))
        self.colons: NDArray[np.int64] = colons[np.append(first[1:], len(raw))] - colons[first]
        self._lines = np.concatenate((np.zeros(1, np.int64), np.cumsum(raw == _LF)))
        line = self.line = self._lines[first]
        self.leads = np.flatnonzero(np.concatenate(([True], line[1:] != line[:-1]))) if len(line) else line

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers of the lines that have words."""
        return self.line[self.leads]

    def check(self, *, tagged: bool) -> None:
        """Check that each word has as many numbers as expected.

        Args:
            tagged: whether the second word of each line is its query's number.

        Raises:
            _WrongError: some lines are not valid rows.
        """
        strange = np.flatnonzero(~_NUMERIC[self._raw])
        if len(strange):
            raise _WrongError(np.unique(self._lines[strange]), self._shown(int(strange[0])))
        expected = np.ones(len(self.first), np.int64)
        expected[self.leads] = 0
        if tagged:
            tags = self.leads + 1
            alone = (tags >= len(self.first)) | (self.line[np.minimum(tags, len(self.line) - 1)] != self.rows)
            if alone.any():
                raise _WrongError(self.rows[alone], "lines with and without qid")
            expected[tags] = 0
        wrong = np.flatnonzero(self.colons != expected)
        if len(wrong):
            raise _WrongError(np.unique(self.line[wrong]), self._shown(int(self.first[wrong[0]])))

    def _shown(self, at: int) -> str:
        return repr(self._raw[at : at + 20].tobytes())


def _integers(numbers: NDArray[np.float64], lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers as integers; ``lines`` has the line of each number."""
    fitting = (np.abs(numbers) < 1 << 53) & (np.trunc(numbers) == numbers)
    if not fitting.all():
        raise _WrongError(np.unique(lines[~fitting]), "an index that is not an integer")
    return numbers.astype(np.int64)


def _numbers(text: bytes, count: int) -> NDArray[np.float64]:
    """Read the ``count`` numbers of a text.

    Raises:
        _WrongError: some lines have other words, or another count of numbers.
    """
    found = _read(text)
    if found is not None and len(found) == count:
        return found
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _LF) + 1
    starts = [0, *ends.tolist(), len(text)]
    wrong: list[int] = []
    parts = [(0, len(starts) - 1)]
    for _ in range(_TRIES_MAX):
        if not parts:
            break
        low, high = parts.pop()
        part = text[starts[low] : starts[high]]
        words = _Words(part)
        found = _read(part)
        if found is not None and len(found) == len(words.first) + int(words.colons.sum()):
            continue
        if high - low == 1:
            wrong.append(low)
        else:
            parts += [(low, (low + high) // 2), ((low + high) // 2, high)]
    wrong += [] if wrong or parts else range(len(starts) - 1)
    wrong += [line for low, high in parts for line in range(low, high)]  # too many tries: count all lines that are left
    raise _WrongError(np.array(sorted(wrong), np.intp), f"{text[starts[wrong[0]] :][:20]!r}")


def _read(text: bytes) -> NDArray[np.float64] | None:
    """Return the numbers of a text, or None if it has other words."""
    if not text.strip():
        return np.zeros(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy's warning for text that is not a number
        try:
            return np.fromstring(text.translate(_COLON_IS_BLANK), np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def _without(text: bytes, lines: NDArray[np.intp]) -> bytes:
    """Return the text with some lines replaced by blanks."""
    ends = np.append(np.flatnonzero(np.frombuffer(text, np.uint8) == _LF), len(text))
    left = bytearray(text)
    for line in lines.tolist():
        start, end = int(ends[line - 1]) + 1 if line else 0, int(ends[line])
        left[start:end] = b" " * (end - start)
    return bytes(left)


def _spread(values: NDArray[Any], is_bad: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the values of good rows in their places among all rows."""
    found = np.zeros(len(is_bad), values.dtype)
    found[~is_bad] = values
    return found


_COLON_IS_BLANK: Final = bytes.maketrans(b":\n\t\r\v\f", b"      ")


def _prepared(text: bytes) -> tuple[bytes, bool]:
    """Return lines without comments and without the word qid, and whether most lines have qid."""
    if bytes((_HASH,)) in text:
        text = b"\n".join(line.split(b"#", 1)[0] for line in text.split(b"\n"))
    tagged = _QID in text and 2 * text.count(_QID) >= len(_Words(text).rows)
    return (text.replace(_QID, b" ") if tagged else text), tagged


LIBSVM_CONVERTER: Final = LibsvmConverter()
