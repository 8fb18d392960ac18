"""libsvm's text as a form: ``label index:value ...`` a line becomes a row of a table.

Fields are ``label`` (float32), ``indices`` (``int64[]``) and ``values`` (``float32[]``), and ``qid`` where lines have
one. Indices are as written: most files count from 1. A ``#`` ends a line; blank lines are no samples. Two lists of
labels, and weights behind a label, are not read.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from feedd.decode.forms.memory import check_room
from feedd.decode.forms.table_writer import Piece, TableWriter
from feedd.decode.forms.whole import WholeObject
from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from feedd.protocols import Held, Out

_PIECE_BYTES: Final = 4 << 20
_LINE_BYTES_MAX: Final = 256 << 20
_BYTES_PER_CHARACTER: Final = 40
"""What it takes to take a text apart, for each of its characters, numbers and all."""
_QID: Final = b" qid:"
_LF, _HASH, _COLON = b"\n#:"
_BLANKS: Final = np.isin(np.arange(256), np.frombuffer(b" \t\r\n\v\f", np.uint8))
_NUMERIC: Final = np.isin(np.arange(256), np.frombuffer(b" \t\r\n\v\f0123456789+-.eE:naifNAIFty", np.uint8))


class LibsvmForm(WholeObject):
    """``protocols.ShardForm`` of libsvm's text; stateless."""

    @property
    def name(self) -> str:
        """``libsvm``."""
        return "libsvm"

    def make(self, held: Held, url: str, params: str, out: Out) -> str:
        """Write a table of all rows.

        Raises:
            BadShard: a line that is no such row.
        """
        del params
        parts: list[_Lines] = []
        held_bytes = 0
        for at, text in _pieces(held.data, url):
            check_room(held_bytes + len(text) * _BYTES_PER_CHARACTER, out, url, "its numbers")
            parts.append(_Lines(text, at, url))
            held_bytes += parts[-1].size_bytes
        if len({part.queries is None for part in parts if len(part.labels)}) > 1:
            got = "some with and some without"
            raise BadShard(f"expected lines all with qid, or all without, got {got}", object=url, stage="decode")
        rows = sum(len(part.labels) for part in parts)
        writer = TableWriter(out, rows, url)
        writer.fixed("label", "float32", 4, (Piece(part.labels) for part in parts))
        counts = [part.counts for part in parts]
        writer.variable("indices", "int64[]", (Piece(p.indices, 8 * n) for p, n in zip(parts, counts, strict=True)))
        writer.variable("values", "float32[]", (Piece(p.values, 4 * n) for p, n in zip(parts, counts, strict=True)))
        if any(part.queries is not None for part in parts):  # then all that have rows
            writer.fixed("qid", "int64", 8, (Piece(part.queries) for part in parts if part.queries is not None))
        return writer.finish()


def _pieces(data: memoryview, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, some megabytes at a time, and where they begin."""
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


class _Lines:
    """Some lines, taken apart all at once.

    Attributes:
        labels: float32[rows].
        queries: int64[rows]; None: lines have none.
        counts: int64[rows], pairs of each.
        indices: int64[pairs].
        values: float32[pairs].
    """

    def __init__(self, text: bytes, at: int, url: str) -> None:
        self._at, self._url = at, url
        text, tagged = _prepared(text)
        raw = np.frombuffer(text, np.uint8)
        if not _NUMERIC[raw].all():
            wrong = int(np.flatnonzero(~_NUMERIC[raw])[0])
            self._fail(f"{text[wrong : wrong + 20]!r}")
        blank = np.concatenate(([True], _BLANKS[raw]))
        first = np.flatnonzero(blank[:-1] & ~blank[1:])  # of each word
        colons = np.concatenate((np.zeros(1, np.int64), np.cumsum(raw == _COLON)))
        ends = np.append(first[1:], len(raw))
        in_word = colons[ends] - colons[first]
        line = np.concatenate((np.zeros(1, np.int64), np.cumsum(raw == _LF)))[first]
        leads = np.flatnonzero(np.concatenate(([True], line[1:] != line[:-1]))) if len(line) else line
        expected = np.ones(len(first), np.int64)
        expected[leads] = 0
        if tagged:
            tags = leads + 1
            if (tags >= len(first)).any() or (line[np.minimum(tags, len(line) - 1)] != line[leads]).any():
                self._fail("lines without qid among others")
            expected[tags] = 0
        if (in_word != expected).any():
            wrong = int(first[np.flatnonzero(in_word != expected)[0]])
            self._fail(f"{text[wrong : wrong + 20]!r}")
        numbers = self._numbers(text, len(first) + int(colons[-1]))
        self._take(numbers, in_word, leads, tagged=tagged)

    def _take(
        self, numbers: NDArray[np.float64], in_word: NDArray[np.int64], leads: NDArray[np.int64], *, tagged: bool
    ) -> None:
        """Tell labels from pairs."""
        at = np.cumsum(in_word + 1) - in_word - 1  # of each word's first number
        with np.errstate(over="ignore"):
            self.labels = numbers[at[leads]].astype(np.float32)
        self.queries = self._integers(numbers[at[leads + 1]]) if tagged else None
        pairs = at[in_word == 1]
        self.indices = self._integers(numbers[pairs])
        with np.errstate(over="ignore"):
            self.values = numbers[pairs + 1].astype(np.float32)
        words = np.diff(np.append(leads, len(in_word)))
        self.counts: NDArray[np.int64] = words - (2 if tagged else 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all numbers."""
        queries = 0 if self.queries is None else self.queries.nbytes
        return int(self.labels.nbytes + queries + self.counts.nbytes + self.indices.nbytes + self.values.nbytes)

    def _integers(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        if (len(numbers) and not (np.abs(numbers) < 1 << 53).all()) or (np.trunc(numbers) != numbers).any():
            self._fail("an index that is no integer")
        return numbers.astype(np.int64)

    def _numbers(self, text: bytes, count: int) -> NDArray[np.float64]:
        """Read all numbers of a text."""
        if not count:
            return np.zeros(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # how it tells of what is no number
            try:
                found = np.fromstring(text.translate(_COLON_IS_BLANK), np.float64, sep=" ")
            except (DeprecationWarning, ValueError) as error:
                self._fail(str(error))
        if len(found) != count:
            self._fail(f"{len(found)} numbers where words say {count}")
        return found

    def _fail(self, got: str) -> NoReturn:
        message = f"expected lines of 'label index:value ...' from byte {self._at} on, got {got}"
        raise BadShard(message, object=self._url, stage="decode")


_COLON_IS_BLANK: Final = bytes.maketrans(b":\n\t\r\v\f", b"      ")


def _prepared(text: bytes) -> tuple[bytes, bool]:
    """Return lines without comments and without the word qid, and whether they had that."""
    if bytes((_HASH,)) in text:
        text = b"\n".join(line.split(b"#", 1)[0] for line in text.split(b"\n"))
    tagged = _QID in text
    return text.replace(_QID, b" "), tagged


LIBSVM_FORM: Final = LibsvmForm()
