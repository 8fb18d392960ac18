"""What is said of an Open that takes long, and of one that fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from structlog.testing import capture_logs

from feedd.errors import NotFound, StoreUnavailable
from feedd.flow.open_progress import TEXT_MAX, OpenProgress, begin_open, enter_stage, note_retry
from feedd.wire import feedd_pb2 as pb
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import error_of, open_request, serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.serve.raw_client import Rig

LISTING = "listing s3://bucket/train/"


class _Waiting(asyncio.Event):
    """A gate that says what the Open waits for when the Open comes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> bool:  # type: ignore[override]  # Literal[True] there
        enter_stage(LISTING)
        note_retry(StoreUnavailable("expected an answer in time, got none"))
        self.reached.set()
        return await super().wait()


async def _status(rig: Rig, open_id: str) -> str:
    answer: pb.OpenStatusResponse = await rig.feed.OpenStatus(pb.OpenStatusRequest(open_id=open_id))
    return answer.waits_for


async def test_an_open_under_way_tells_what_it_waits_for(short_dir: Path) -> None:
    """OpenStatus tells the stage and the store's trouble while the Open lasts, and nothing of other Opens."""
    gate = _Waiting()
    async with serving(short_dir, FakeScript(open_gate=gate)) as rig:
        opening = asyncio.ensure_future(rig.open(open_id="mine"))
        await gate.reached.wait()
        assert (
            await _status(rig, "mine") == f"{LISTING} (1 retry, the last because: expected an answer in time, got none)"
        )
        assert await _status(rig, "another") == ""
        gate.set()
        await opening
        assert await _status(rig, "mine") == ""


async def test_the_daemon_answers_before_the_client_gives_up(short_dir: Path) -> None:
    """A client's deadline ends an Open with the store's error, which says what was being waited for."""
    async with serving(short_dir, FakeScript(open_gate=_Waiting())) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.feed.Open(open_request(), timeout=1.0)
        error = error_of(caught.value)
        assert (caught.value.code(), error.kind) == (grpc.StatusCode.UNAVAILABLE, "store-unavailable")
        assert LISTING in error.message
        assert error.object == "s3://bucket/train/"
        assert "open_timeout_s" in error.hint


async def test_a_failed_open_is_in_the_log(short_dir: Path) -> None:
    """One warning says who asked, for what, and why it failed."""
    script = FakeScript(open_error=NotFound("expected an object, got none", object="s3://bucket/train/"))
    async with serving(short_dir, script) as rig:
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError):
            await rig.open(client_version="9.8.7")
        [entry] = [log for log in logs if log["event"] == "open failed"]
        assert entry["log_level"] == "warning"
        assert (entry["kind"], entry["client"], entry["urls"]) == ("not-found", "9.8.7", ["s3://bucket/train/"])
        assert entry["object"] == "s3://bucket/train/"
        assert entry["peer"].startswith("unix:")


async def test_an_open_id_is_bounded(short_dir: Path) -> None:
    """A daemon keeps no long texts for a client."""
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.open(open_id="x" * 65)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_progress_is_one_bounded_line() -> None:
    """However long a URL or an error is, the text has at most ``TEXT_MAX`` characters."""
    progress = begin_open()
    enter_stage("listing " + "x" * 10_000)
    note_retry(StoreUnavailable("y" * 10_000))
    assert len(str(progress)) == TEXT_MAX
    assert str(OpenProgress()) == "reading the request"
