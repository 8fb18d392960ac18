"""The Files service: what it refuses before anything is read, and what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from feedd.errors import FeeddError, NotFound
from feedd.serve import files_service
from feedd.serve.files_service import ListedName
from feedd.serve.server_options import ServeHooks
from feedd.units import MIB
from feedd.values import ObjectRef
from feedd.wire import feedd_pb2 as pb
from tests.unit.serve.raw_client import WAIT_S, error_of, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from feedd.owner import Owner
    from feedd.values import ByteRange

DATA = bytes(range(256)) * (3 * MIB // 256) + b"end"
URL = "s3://b/k"


class _Files:
    """One object, or an error."""

    def __init__(self, error: FeeddError | None = None) -> None:
        self.error = error
        self.calls: list[Any] = []

    async def info(self, url: str, owner: Owner) -> ObjectRef:
        self.calls.append((url, owner.kind))
        if self.error is not None:
            raise self.error
        return ObjectRef("s3://b", "k", len(DATA), "e")

    async def list(
        self, url: str, owner: Owner, send: Callable[[Sequence[ListedName]], Awaitable[object]], *, recursive: bool
    ) -> None:
        self.calls.append((url, owner.kind, recursive))
        await send([ListedName("k", ObjectRef("s3://b", "k", 7, "e")), ListedName("odd\udcff/", None)])
        if self.error is not None:
            raise self.error
        await send([ListedName("z/", None)])

    async def read(
        self,
        version: tuple[str, str, int],
        owner: Owner,
        span: ByteRange,
        send: Callable[[memoryview], Awaitable[object]],
    ) -> None:
        self.calls.append((version, owner.kind, span.start, span.end))
        await send(memoryview(DATA)[span.start : span.end])
        if self.error is not None:
            raise self.error


def _read(**changes: Any) -> pb.ReadFileRequest:
    fields: dict[str, Any] = {"url": URL, "etag": "e", "object_bytes": len(DATA), "offset": 0, "size_bytes": len(DATA)}
    return pb.ReadFileRequest(**fields | changes)


async def test_what_is_sent(short_dir: Path) -> None:
    """Names as they come, page by page; bytes in messages of a bounded size; each call is of its owner."""
    files = _Files()
    async with serving(short_dir, hooks=ServeHooks(files=files)) as rig:
        assert await rig.files.Info(pb.FileInfoRequest(url=URL)) == pb.FileEntry(
            key="k", size_bytes=len(DATA), etag="e"
        )
        request = pb.ListFilesRequest(url="s3://b/", recursive=True)
        parts = [part async for part in rig.files.List(request, timeout=WAIT_S)]
        assert [[entry.key for entry in part.entries] for part in parts] == [["k", "odd\ufffd\ufffd\ufffd/"], ["z/"]]
        assert [entry.etag for entry in parts[0].entries] == ["e", ""]
        chunks = [part.data async for part in rig.files.Read(_read(offset=5, size_bytes=len(DATA) - 5))]
        assert b"".join(chunks) == DATA[5:]
        assert max(map(len, chunks)) <= MIB
    assert files.calls == [(URL, "uid"), ("s3://b/", "uid", True), ((URL, "e", len(DATA)), "uid", 5, len(DATA))]


@pytest.mark.parametrize(
    "changes",
    [
        {"etag": ""},
        {"etag": "e" * 2000},
        {"url": "s3://b/" + "k" * 5000},
        {"offset": len(DATA) + 1, "size_bytes": 0},
        {"size_bytes": len(DATA) + 1},
        {"offset": 1},
        {"object_bytes": (1 << 64) - 1, "offset": 1 << 63, "size_bytes": 1 << 60},
    ],
)
async def test_a_range_outside_of_the_object_is_refused(short_dir: Path, changes: dict[str, Any]) -> None:
    """Before anything is allocated or fetched."""
    files = _Files()
    async with serving(short_dir, hooks=ServeHooks(files=files)) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.files.Read(_read(**changes), timeout=WAIT_S).read()
        assert error_of(refused.value).kind == "bad-request"
    assert not files.calls


async def test_errors_reach_the_client(short_dir: Path) -> None:
    """With their kind and object, also in the middle of an answer; a daemon without files says so."""
    gone = NotFound("expected an object, got none", object=URL)
    async with serving(short_dir, hooks=ServeHooks(files=_Files(gone))) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await rig.files.Info(pb.FileInfoRequest(url=URL), timeout=WAIT_S)
        assert (error_of(failed.value).kind, error_of(failed.value).object) == ("not-found", URL)
        for call in (rig.files.List(pb.ListFilesRequest(url=URL)), rig.files.Read(_read(size_bytes=1))):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                _ = [part async for part in call]
            assert error_of(failed.value).kind == "not-found"
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await rig.files.Info(pb.FileInfoRequest(url=URL), timeout=WAIT_S)
        assert error_of(failed.value).kind == "unsupported"


async def test_a_daemon_that_drains_takes_no_more(short_dir: Path) -> None:
    """The client tries again, at the next daemon."""
    async with serving(short_dir, hooks=ServeHooks(files=_Files())) as rig:
        rig.server.sessions.draining = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rig.files.Info(pb.FileInfoRequest(url=URL), timeout=WAIT_S)
        assert error_of(refused.value).kind == "draining"


async def test_a_client_that_reads_nothing_loses_its_call(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of its answer are memory of the daemon."""
    monkeypatch.setattr(files_service, "_READER_S", 0.2)
    ended: list[BaseException] = []

    class Endless(_Files):
        async def read(self, version: Any, owner: Owner, span: ByteRange, send: Any) -> None:
            try:
                while True:
                    await send(memoryview(DATA))
            except BaseException as error:
                ended.append(error)
                raise

    async with serving(short_dir, hooks=ServeHooks(files=Endless())) as rig:
        call = rig.files.Read(_read(), timeout=WAIT_S)
        await call.read()
        await rig.until(lambda: ended)
        call.cancel()
    assert isinstance(ended[0], FeeddError)
