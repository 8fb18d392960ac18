"""Small bodies that go to a file: received into memory that is used again and again, and written from there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache.block_sums import BlockSums
from feedd.errors import BadResponse, CacheUnavailable
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.fetch.s3.transfer import TransferThreads
from feedd.flow.range_sinks import FileSink
from feedd.values import ByteRange, ReadProgress
from tests.budget import PATIENT_S
from tests.fakes.raw_server import RawServer
from tests.fakes.sinks import content, into, memory_sink_file, sink_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from feedd.flow.range_sinks import Written
    from feedd.flow.sink_file import SinkFile
    from tests.fakes.raw_server import Answer as Sent

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = bytes(range(251)) * 400
AT = 5_000  # of the body in the file
SIZE = AT + len(BODY) + 100
HEAD = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
WAIT = b"HTTP/1.1 100 Continue\r\n\r\n"
CUTS: dict[str, Sent] = {
    "in one piece": HEAD + BODY,
    "head and body apart": [HEAD, BODY],
    "in several pieces": [HEAD + BODY[:7], BODY[7:20_000], BODY[20_000:20_001], BODY[20_001:]],
    "the head cut": [HEAD[:20], HEAD[20:30], HEAD[30:] + BODY],
    "a word before": WAIT + HEAD + BODY,
    "a word before, the head cut": [WAIT[:9], WAIT[9:] + HEAD[:20], HEAD[20:] + BODY[:50_000], BODY[50_000:]],
}
TOO_MUCH: dict[str, tuple[Sent, str]] = {
    "behind the body": (HEAD + BODY + b"x", f"expected {len(BODY)} bytes, got {len(BODY) + 1}"),
    "of a head": (b"HTTP/1.1 206 OK\r\nX: " + bytes(40_000), "expected a head of at most 16384 bytes"),
    "of a head, cut": ([b"HTTP/1.1 206 OK\r\nX: ", bytes(40_000)], "expected a head of at most 16384 bytes"),
    "of a head behind a word": (WAIT + b"HTTP/1.1 206 OK\r\nX: " + bytes(40_000), "expected a head of at most 16384"),
}


@pytest.fixture(params=["memory", "disk"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkFile]:
    """A file of zeros with room before and behind: in memory, which the loop writes to, and on a disk."""
    opened = memory_sink_file(SIZE) if request.param == "memory" else sink_file(tmp_path / "file", SIZE)
    with opened as file:
        file.in_memory = request.param == "memory"  # the folder of tests may be in memory, too
        yield file


def body_sink(file: SinkFile, written: Written | None = None) -> FileSink:
    """Return where the body belongs."""
    return FileSink(file, AT, len(BODY), written)


def all_of(file: SinkFile) -> bytes:
    """Return what the file holds."""
    return content(FileSink(file, 0, SIZE))


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    """What chooses the way of bodies, with threads for large ones."""
    transfer_threads = TransferThreads(2)
    yield Files(transfer_threads)
    transfer_threads.close()


@pytest.mark.parametrize("sent", CUTS.values(), ids=CUTS.keys())
async def test_every_byte_is_where_it_belongs_and_summed_once(file: SinkFile, files: Files, sent: Sent) -> None:
    """However an answer is cut; nothing beside it is touched, and no byte is read again for its checksum."""
    sums = BlockSums(SIZE, 0)
    async with RawServer(sent, sent) as server:
        pool = _pool(server, files)
        for _ in range(2):  # the second time over the first
            progress = ReadProgress()
            await pool.request(REQUEST, body_sink(file, sums.written), lambda _: None, progress=progress)
            assert progress.filled_bytes == len(BODY)
            assert progress.first_byte_s is not None
        await pool.aclose()
    wanted = bytes(AT) + BODY + bytes(100)
    assert all_of(file) == wanted
    sums.take(ByteRange(AT, AT + len(BODY)), into(bytes(len(BODY))))  # as if it were zeros by now
    found = sums.finish(into(bytes(SIZE)))
    assert found == BlockSums(len(wanted)).finish(into(wanted))


def _pool(server: RawServer, files: Files) -> ConnectionPool:
    options = SourceOptions(connect_timeout_s=PATIENT_S, read_timeout_s=PATIENT_S, parts_in_flight=4, hedge_share=0.0)
    return ConnectionPool(Endpoint(f"http://127.0.0.1:{server.port}", "127.0.0.1", server.port, None), options, files)


@pytest.mark.parametrize(("sent", "got"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
async def test_too_much_is_refused(file: SinkFile, files: Files, sent: Sent, got: str) -> None:
    """However it comes; nothing behind the body's place is touched."""
    async with RawServer(sent) as server:
        pool = _pool(server, files)
        with pytest.raises(BadResponse, match=got):
            await pool.request(REQUEST, body_sink(file), lambda _: None)
        await pool.aclose()
    assert all_of(file)[AT + len(BODY) :] == bytes(100)


@pytest.mark.parametrize("cut", [0, 10, 80, 30_000])
async def test_what_an_error_says_is_not_written(file: SinkFile, files: Files, cut: int) -> None:
    """The same connection then brings what was wanted."""
    said = b"no such thing" * 5_000
    error = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said
    async with RawServer([error[:cut], error[cut:]] if cut else error, HEAD + BODY) as server:
        pool = _pool(server, files)
        answer = await pool.request(REQUEST, body_sink(file), lambda _: None)
        assert (answer.status, bytes(answer.body)) == (404, said)
        assert not any(all_of(file))
        await pool.request(REQUEST, body_sink(file), lambda _: None)
        assert content(body_sink(file)) == BODY
        await pool.aclose()
        assert server.connection_count == 1


async def test_a_file_that_cannot_be_written_is_the_caches_trouble(
    file: SinkFile, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's own word reaches whoever reads the error; nothing counts as received."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    progress = ReadProgress()
    async with RawServer(HEAD + BODY) as server:
        pool = _pool(server, files)
        monkeypatch.setattr(os, "pwrite", refuse)
        monkeypatch.setattr(os, "pwritev", refuse)
        with pytest.raises(CacheUnavailable, match="Input/output error"):
            await pool.request(REQUEST, body_sink(file), lambda _: None, progress=progress)
        await pool.aclose()
    assert progress.filled_bytes == 0
