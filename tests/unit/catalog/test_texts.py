"""Texts of strangers: parsed off the loop, and only so many bytes of them at a time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.catalog.manifest import Names
from feedd.catalog.texts import Texts
from feedd.dataset.object_labels import parse_table
from feedd.values import ObjectRef
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink


class _Fetcher:
    """Writes a text, and takes note of how many bytes are wanted at one time."""

    def __init__(self) -> None:
        self.held_bytes = self.most_bytes = 0

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Take a turn of the loop or two."""
        self.held_bytes += sink.size_bytes
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        await asyncio.sleep(0)
        await sink.write(0, b"x" * sink.size_bytes)
        await asyncio.sleep(0)

    def parsed(self, data: memoryview) -> tuple[int, int]:
        """Return which thread parses, and what is there."""
        self.held_bytes -= len(data)
        return threading.get_ident(), bytes(data).count(b"x")


async def test_parsers_run_in_threads_within_the_limit() -> None:
    """No parser runs on the loop; texts are in memory together up to the limit, and a larger one is alone."""
    fetcher = _Fetcher()
    texts = Texts(fetcher, 100)  # type: ignore[arg-type]  # of a fetcher, what is used
    sizes = [60, 60, 40, 0, 250, 30]
    refs = [ObjectRef("s3://b", f"{number}", size, "e") for number, size in enumerate(sizes)]
    found = await asyncio.wait_for(asyncio.gather(*(texts.parse(ref, fetcher.parsed) for ref in refs)), 30)
    assert [count for _, count in found] == sizes
    assert threading.get_ident() not in {thread for thread, _ in found}
    assert fetcher.most_bytes == 250


async def test_a_parser_that_fails_leaves_room() -> None:
    """What a parser raises is raised, and the next text is read."""
    fetcher = _Fetcher()
    texts = Texts(fetcher, 10)  # type: ignore[arg-type]  # as above

    def refuse(data: memoryview) -> None:
        raise ValueError(f"expected none, got {len(data)} bytes")

    ref = ObjectRef("s3://b", "a", 10, "e")
    for _ in range(2):
        with pytest.raises(ValueError, match="got 10 bytes"):
            await asyncio.wait_for(texts.parse(ref, refuse), PATIENT_S)


def test_names_of_objects_stay_what_they_are() -> None:
    """Stores and keys come back in order, however odd, and hold no text for each of them."""
    names = [("s3://a", "x"), ("s3://b", ""), ("s3://a", "é\ud800"), ("s3://a", "x")]
    held = Names(names)
    assert (list(held), len(held), len(Names())) == (names, 4, 0)
    assert ("s3://b", "") in held
    assert ("s3://b", "x") not in held


def test_rows_of_a_table_are_freed_in_pieces() -> None:
    """No dict holds all rows of a table, and a table that is cleared has none left."""
    data = b"path,label\n" + b"".join(b"%06d.jpg,%d\n" % (number, number % 3) for number in range(20_000))
    table = parse_table("labels.csv", data, "label")
    assert len(table.rows) == 20_000
    assert max(map(len, table.rows.parts)) < 2_000  # type: ignore[attr-defined]  # how it is held
    table.clear()
    assert not table.rows


def test_a_line_of_a_csv_is_bounded() -> None:
    """A line as long as a file is refused before it is taken apart."""
    with pytest.raises(ValueError, match="lines of at most"):
        parse_table("labels.csv", b"path,label\n" + b"a" * (2 << 20), "label")
