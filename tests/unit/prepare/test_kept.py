"""The index file under several writers: what one has written, no other loses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from feedd.dataset.index_file import Row, merged, parse, render
from feedd.errors import NotFound
from feedd.prepare.index_writer import IndexTarget
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.server import S3Server
from tests.fakes.stores import sources_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from feedd.catalog.sources import Sources

KEY = "train/_feedd_index.json"


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start an S3 server with an empty bucket."""
    with S3Server() as running:
        running.create_bucket("data")
        yield running


@pytest.fixture
async def sources(server: S3Server) -> AsyncIterator[Sources]:
    """Open sources over the server."""
    async with sources_over(server) as opened:
        yield opened


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name an index in a bucket, and one in a folder."""
    return f"s3://data/{KEY}" if request.param == "s3" else str(tmp_path / "index.json")


def _row(name: str, count: int = 1, etag: str = "x") -> Row:
    return Row(name, 10, etag, count)


def _ours(*rows: Row) -> dict[str, Row]:
    return {row.key: row for row in rows}


async def _there(sources: Sources, url: str) -> list[Row]:
    return await IndexTarget(sources, url).read()


def test_whose_rows_stay() -> None:
    """Ours, and what others wrote since; what was there before and is of nothing that is listed goes."""
    ours = _ours(_row("a"), _row("b"))
    gone, replaced = _row("gone"), _row("b", etag="old")
    newer, theirs = _row("a", etag="newer"), _row("c")
    assert merged(ours, [gone, replaced, _row("a")], {gone, replaced}) == ([_row("a"), _row("b")], [])
    assert merged(ours, [gone, theirs, newer], {gone}) == ([newer, _row("b"), theirs], [theirs, newer])
    assert merged({}, [], ()) == ([], [])


async def test_two_that_read_the_same(sources: Sources, url: str) -> None:
    """The second to write takes over what the first wrote in between; the first learns of it when it writes again."""
    first, second = IndexTarget(sources, url), IndexTarget(sources, url)
    assert await first.read() == await second.read() == []
    assert await first.save(_ours(_row("a"))) == []
    assert await second.save(_ours(_row("b"))) == [_row("a")]
    assert await _there(sources, url) == [_row("a"), _row("b")]
    assert await first.save(_ours(_row("a"), _row("c"))) == [_row("b")]
    assert await _there(sources, url) == [_row("a"), _row("b"), _row("c")]


@pytest.mark.slow
async def test_many_at_once(sources: Sources, url: str) -> None:
    """Six writers that save four times each, all at once: every row of each is there at the end."""

    async def write(name: str) -> None:
        kept = IndexTarget(sources, url)
        rows: dict[str, Row] = {}
        for number in range(4):
            rows |= _ours(_row(f"{name}{number}"))
            await kept.save(rows)

    async with asyncio.TaskGroup() as group:
        for name in "abcdef":
            group.create_task(write(name))
    assert [row.key for row in await _there(sources, url)] == [f"{name}{n}" for name in "abcdef" for n in range(4)]


async def test_nothing_new_is_not_written(sources: Sources, server: S3Server) -> None:
    """Where the index says what is known already it stays as it is, and is not read again either."""
    kept = IndexTarget(sources, f"s3://data/{KEY}")
    await kept.save(_ours(_row("a")))
    before = len(server.requests)
    assert await kept.save(_ours(_row("a"))) == []
    assert [one.method for one in server.requests[before:]] == ["HEAD"]


async def test_removed_meanwhile(sources: Sources, server: S3Server) -> None:
    """An index that is gone is made again; a bucket that is gone is an error."""
    kept = IndexTarget(sources, f"s3://data/{KEY}")
    await kept.save(_ours(_row("a")))
    server.delete("data", KEY)
    await kept.save(_ours(_row("a"), _row("b")))
    assert await _there(sources, f"s3://data/{KEY}") == [_row("a"), _row("b")]
    with pytest.raises(NotFound):
        await IndexTarget(sources, f"s3://nowhere/{KEY}").save(_ours(_row("a")))


async def test_something_else_there(sources: Sources, url: str) -> None:
    """Reading it is an error that says what it is not; saving replaces it."""
    await sources.put(url, b"no index")
    kept = IndexTarget(sources, url)
    with pytest.raises(ValueError, match="expected an index"):
        await kept.read()
    assert await kept.save(_ours(_row("a"))) == []
    assert await _there(sources, url) == [_row("a")]


async def test_an_answer_that_is_lost(sources: Sources, server: S3Server) -> None:
    """A write that was done and is sent again finds its own work, not somebody else's."""
    server.put("data", KEY, render([_row("b")]))
    server.script("data", KEY, fault.reset_before(), op="PUT")
    kept = IndexTarget(sources, f"s3://data/{KEY}")
    await kept.read()
    assert await kept.save(_ours(_row("a"), _row("b"))) == []
    assert [one.method for one in server.requests].count("PUT") == 2
    assert await _there(sources, f"s3://data/{KEY}") == [_row("a"), _row("b")]


async def test_a_store_in_the_middle_of_another_write(sources: Sources, server: S3Server) -> None:
    """A conflict of two conditional writes is as good as having come second."""
    server.script("data", KEY, fault.refused(409, "ConditionalRequestConflict"), op="PUT")
    await IndexTarget(sources, f"s3://data/{KEY}").save(_ours(_row("a")))
    assert await _there(sources, f"s3://data/{KEY}") == [_row("a")]


async def test_a_store_without_conditions(sources: Sources, server: S3Server) -> None:
    """It is written to all the same, and the log says what may be lost."""
    server.script("data", KEY, fault.refused(501, "NotImplemented"), op="PUT")
    with capture_logs() as logs:
        await IndexTarget(sources, f"s3://data/{KEY}").save(_ours(_row("a")))
    assert [log["event"] for log in logs] == [
        "the store has no conditional PUT: of two concurrent writes, one may be lost"
    ]
    assert "if-none-match" not in server.requests[-1].headers
    found = server._objects.find("data", KEY)
    assert found is not None
    assert parse(found.data or b"") == [_row("a")]
