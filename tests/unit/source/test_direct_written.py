"""Small bodies that go to a file: received into memory that is used again and again, and written from there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache.blocks import BlockSums
from feedd.errors import CacheUnavailable
from feedd.flow.mapping import FileMapping
from feedd.source.options import SourceOptions
from feedd.source.s3.direct.body import Files
from feedd.source.s3.direct.mover import Movers
from feedd.source.s3.direct.pool import ConnectionPool, Endpoint
from feedd.values import ByteRange, ReadProgress
from tests.fakes.raw_server import RawServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.fakes.raw_server import Answer as Sent

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = bytes(range(251)) * 400
AT = 5_000  # of the body in the file
HEAD = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
CUTS: dict[str, Sent] = {
    "in one piece": HEAD + BODY,
    "head and body apart": [HEAD, BODY],
    "in several pieces": [HEAD + BODY[:7], BODY[7:20_000], BODY[20_000:20_001], BODY[20_001:]],
}


@pytest.fixture
def mapping(tmp_path: Path) -> Iterator[FileMapping]:
    """A file of zeros with room before and behind."""
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, AT + len(BODY) + 100)
    made = FileMapping(file, AT + len(BODY) + 100)
    os.close(file)
    yield made
    made.close()


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    """What chooses the way of bodies, with threads for large ones."""
    movers = Movers()
    yield Files(movers)
    movers.close()


@pytest.mark.parametrize("sent", CUTS.values(), ids=CUTS.keys())
async def test_every_byte_is_where_it_belongs_and_summed_once(mapping: FileMapping, files: Files, sent: Sent) -> None:
    """However an answer is cut; nothing beside it is touched, and no byte is read again for its checksum."""
    sums = BlockSums(mapping.size(), 0)
    mapping.landed = sums.landed
    options = SourceOptions(connect_timeout_s=2.0, read_timeout_s=5.0, parts_in_flight=4, hedge_share=0.0)
    async with RawServer(sent, sent) as server:
        pool = ConnectionPool(
            Endpoint(f"http://127.0.0.1:{server.port}", "127.0.0.1", server.port, None), options, files
        )
        for _ in range(2):  # the second time over the first
            progress = ReadProgress()
            with memoryview(mapping) as whole, whole[AT : AT + len(BODY)] as target:
                await pool.request(REQUEST, target, lambda _: None, progress=progress)
            assert progress.filled_bytes == len(BODY)
            assert progress.first_byte_s is not None
        await pool.aclose()
    wanted = bytes(AT) + BODY + bytes(100)
    assert bytes(mapping) == wanted
    sums.take(ByteRange(AT, AT + len(BODY)), memoryview(bytes(len(BODY))))  # as if it were zeros by now
    found = sums.finish(memoryview(bytes(AT + len(BODY) + 100)))
    assert found == BlockSums(len(wanted)).finish(memoryview(wanted))


async def test_a_file_that_cannot_be_written_is_the_caches_trouble(
    mapping: FileMapping, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's own word reaches whoever reads the error; nothing counts as received."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    progress = ReadProgress()
    with memoryview(mapping) as whole, whole[AT : AT + len(BODY)] as target:
        body = files.body(None, None, target, progress, lambda _: None)  # type: ignore[arg-type]  # it needs neither
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(CacheUnavailable, match="Input/output error"):
            body.received(10)
    assert progress.filled_bytes == 0
