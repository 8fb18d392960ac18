"""No descriptors, no processes: calls fail by name, workers are tried ever more rarely, and the pool goes on."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import resource
import signal
import socket
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from structlog.testing import capture_logs

from feedd import metrics
from feedd.conversion import Conversion
from feedd.errors import Internal, ResourceExhausted
from feedd.tables.task import MakeTask
from feedd.values import ByteRange
from feedd.workers import autoscaler, supervisor
from feedd.workers import process as backoff
from feedd.workers.messages import PROTOCOL, Detach, copies, encode
from feedd.workers.pool import DecodePool
from feedd.workers.process import BackOff, Child
from feedd.workers.work import DecodeOptions
from tests.fakes import fetchers, poison_worker
from tests.fakes.decoding import decoding
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import shard_file, tar_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.values import ShardFile

pytestmark = pytest.mark.slow

LIMIT_S = 30.0
until = partial(fetchers.until, limit_s=LIMIT_S)


@pytest.fixture(autouse=True)
def _unattended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody look after the crew but the test."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 3600.0)


def shard(path: Path) -> ShardFile:
    """Return a shard of two samples."""
    return shard_file(path / "x.tar", tar_bytes([("a", {"x": b"1"}), ("b", {"x": b"2"})]))


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing any more; the event loop has what it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refuse(*_: object) -> NoReturn:
    """Answer as the kernel does where too many descriptors are under way."""
    raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))


async def test_an_index_that_cannot_be_received_fails_its_call(tmp_path: Path) -> None:
    """Where the daemon may open no more files, indexing fails with what to do, no worker dies, and it works later."""
    async with decoding([shard(tmp_path)], DecodeOptions()) as rig:
        before = rig.pool.worker_pids
        async with asyncio.timeout(LIMIT_S):
            with no_more_files(), pytest.raises(ResourceExhausted, match="ulimit -n"):
                await rig.pool.index(rig.files[0], "tar")
        assert (await rig.pool.index(rig.files[0], "tar")).sample_count == 2
        assert rig.pool.worker_pids == before
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0


async def test_an_arena_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """Attaching keeps a descriptor: without room for it nothing is attached, and everything else goes on."""
    async with decoding([shard(tmp_path)], DecodeOptions()) as rig:
        with no_more_files(), pytest.raises(ResourceExhausted, match="ulimit -n"):
            rig.pool.attach(9, rig.fd, rig.size_bytes)
        assert 9 not in rig.pool._arenas
        rig.pool.attach(9, rig.fd, rig.size_bytes)
        assert (await rig.decode({"x": "bytes"}))[1]["x"] == [b"1", b"2"]
        rig.pool.detach(9)


async def test_a_request_whose_descriptors_cannot_go_along_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard to be made takes two descriptors along: without room that call fails at once, and only that."""
    source, out = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("source", "out"))
    os.write(source, b"{}\n")
    task = MakeTask(Conversion("gzip"), "s3://b/x.gz", 3, (ByteRange(0, 3),), source, out, 0, 1 << 20, 1 << 20)
    try:
        async with decoding([shard(tmp_path)], DecodeOptions()) as rig:
            with monkeypatch.context() as scarce:
                scarce.setattr(socket, "send_fds", refuse)
                with pytest.raises(ResourceExhausted, match="Too many references"):
                    await asyncio.wait_for(rig.pool.make(task), LIMIT_S)
            assert (await rig.decode({"x": "bytes"}))[1]["x"] == [b"1", b"2"]
            assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0
            assert rig.recorder.total(metrics.DECODE_TASKS) == 0
    finally:
        os.close(source)
        os.close(out)


async def test_a_request_waits_for_descriptors_that_other_requests_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for descriptors while a worker is busy, a request is sent when the worker has answered."""
    source, out = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("source", "out"))
    size_bytes = os.write(source, gzip.compress(b"{}\n"))
    whole = (ByteRange(0, size_bytes),)
    task = MakeTask(Conversion("gunzip"), "s3://b/x.gz", size_bytes, whole, source, out, 0, 1 << 20, 1 << 20)
    refused = asyncio.Event()

    def refuse_once(*given: Any) -> int:
        if refused.is_set():
            return send_fds(*given)
        refused.set()
        return refuse()

    try:
        async with decoding([shard(tmp_path)], DecodeOptions()) as rig, asyncio.TaskGroup() as group:
            (worker,) = rig.pool.worker_pids
            os.kill(worker, signal.SIGSTOP)
            try:
                decoded = group.create_task(rig.decode({"x": "bytes"}))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert rig.pool._dispatch._schedule.busy_count
                send_fds = socket.send_fds
                monkeypatch.setattr(socket, "send_fds", refuse_once)
                made = group.create_task(rig.pool.make(task))
                await asyncio.wait_for(refused.wait(), LIMIT_S)
                assert not made.done()
            finally:
                os.kill(worker, signal.SIGCONT)
            assert (await decoded)[1]["x"] == [b"1", b"2"]
            await asyncio.wait_for(made, LIMIT_S)
            assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0
    finally:
        os.close(source)
        os.close(out)


@pytest.mark.parametrize(
    ("kills", "ending"), [((4, 4), "SIGKILL"), ((4, 5), "SIGKILL, because the control group ran out of memory")]
)
async def test_a_kill_for_want_of_memory_is_named(
    kills: tuple[int, int], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies by SIGKILL while its control group counts a kill says that memory ran out."""
    counts = iter(kills)
    monkeypatch.setattr("feedd.workers.process.oom_kills", lambda: next(counts))
    child = Child(DecodeOptions(), lambda *_: None)
    os.kill(child.pid, signal.SIGKILL)
    await child.gone
    await child.reap()
    assert child.ending == ending


async def test_what_waits_in_the_outbox_is_sent_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet that had to wait for the socket, and then finds no room for its descriptor, goes when there is some."""
    got: list[bytes] = []
    fd = os.memfd_create("x", os.MFD_CLOEXEC)
    child = Child(DecodeOptions(), lambda _child, data, _fds: got.append(data))
    try:
        await until(lambda: bool(got))
        os.kill(child.pid, signal.SIGSTOP)  # the socket fills up
        while not child._outbox:
            child.send(encode(Detach(1)))
        child.send(encode(Detach(2)), (fd,))
        send_fds = socket.send_fds
        tried: list[int] = []

        def not_at_first(sock: socket.socket, payloads: list[bytes], fds: list[int]) -> int:
            tried.append(0)
            if len(tried) == 1:
                refuse()
            tried[-1] = send_fds(sock, payloads, fds)
            return tried[-1]

        monkeypatch.setattr(socket, "send_fds", not_at_first)
        os.kill(child.pid, signal.SIGCONT)
        await until(lambda: not child._outbox or child.gone.done())
        assert tried == [0, len(encode(Detach(2)))]
    finally:
        os.close(fd)
        await child.reap()


def test_copies_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two descriptors of which only one can be copied none stays open."""
    dup = os.dup
    made: list[int] = []

    def second_fails(fd: int) -> int:
        if made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(dup(fd))
        return made[0]

    monkeypatch.setattr(os, "dup", second_fails)
    with pytest.raises(ResourceExhausted):
        copies((0, 0))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


async def test_a_process_nobody_can_watch_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose pidfd cannot be had is ended; the guards see whether process or socket stay."""

    def refused(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match="Too many open files"):
        Child(DecodeOptions(), lambda *_: None)


# ------------------------------------------------------------------ workers that do not start


def test_waits_double_up_to_a_bound() -> None:
    """0.2, 0.4, ... 30, 30 s; each longer wait is news, the same again is not; a success begins anew."""
    waits = BackOff(0.2)
    seen = [(waits.failed(), waits.news) for _ in range(11)]
    assert [round(wait_s, 6) for wait_s, _ in seen] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]
    assert [news for _, news in seen] == [True] * 9 + [False] * 2
    waits.worked()
    assert (waits.failed(), waits.news) == (0.2, True)


def flaky(path: Path) -> tuple[tuple[str, ...], Path]:
    """Return a worker's command that works as long as a file is there, and that file."""
    allowed = path / "allowed"
    allowed.touch()
    return ("sh", "-c", f'[ -e {allowed} ] && exec "$@"', "worker", *poison_worker.COMMAND), allowed


async def test_a_worker_that_cannot_be_started_again_is_tried_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon lives on without workers and says so; each wait is logged once; calls are done when one comes."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_S", 0.1)
    command, allowed = flaky(tmp_path)
    async with decoding([shard(tmp_path)], DecodeOptions(command=command)) as rig:
        await rig.decode({"x": "bytes"})
        allowed.unlink()
        with capture_logs() as logs:
            os.kill(rig.pool.worker_pids[0], signal.SIGKILL)
            await until(lambda: rig.recorder.total(metrics.DECODE_START_FAILURES) >= 7)
            assert rig.recorder.total(metrics.DECODE_WORKERS) == 0
            told = [log["again_in_s"] for log in logs if log["event"] == "decode worker cannot be started"]
            assert told == [0.05, 0.1]
            waiting = asyncio.ensure_future(rig.decode({"x": "bytes"}))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            allowed.touch()
            assert (await waiting)[1]["x"] == [b"1", b"2"]
        assert rig.recorder.total(metrics.DECODE_WORKERS) == 1


async def test_closing_does_not_wait_for_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool closes at once while a place waits half a minute to be filled."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(backoff, "LONGEST_S", 3600.0)
    command, allowed = flaky(tmp_path)
    async with asyncio.timeout(LIMIT_S):
        recorder = TallyRecorder()
        async with DecodePool(DecodeOptions(command=command), recorder) as pool:
            allowed.unlink()
            os.kill(pool.worker_pids[0], signal.SIGKILL)
            await until(lambda: recorder.total(metrics.DECODE_START_FAILURES) == 1)


async def test_a_successor_that_cannot_be_started_is_tried_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has grown too large stays while nobody can take its place, and is not asked about each second."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.02)
    command, allowed = flaky(tmp_path)
    options = DecodeOptions(command=command, recycle_growth_bytes=1)
    recorder = TallyRecorder()
    async with DecodePool(options, recorder) as pool:
        allowed.unlink()
        monkeypatch.setattr(autoscaler, "anonymous_bytes", lambda pid: 1 << 40)
        await until(lambda: recorder.total(metrics.DECODE_START_FAILURES) >= 3)
        began = recorder.total(metrics.DECODE_START_FAILURES)
        await asyncio.sleep(0.3)  # 15 turns; the waits are 0.16 s and more by now
        assert recorder.total(metrics.DECODE_START_FAILURES) - began <= 3
        assert len(pool.worker_pids) == 1
        allowed.touch()
        await until(lambda: recorder.total(metrics.DECODE_RECYCLED) == 1)


@pytest.mark.parametrize(
    ("name", "value"), [("PROTOCOL", PROTOCOL + 1), ("build_digest", lambda: "of libraries that are gone")]
)
async def test_an_upgraded_daemon_without_workers_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """A worker of another version or build will never do: whoever supervises the daemon is to start the new one."""
    command, _ = flaky(tmp_path)
    recorder = TallyRecorder()

    async def upgraded() -> None:
        async with DecodePool(DecodeOptions(command=command), recorder) as pool:
            assert recorder.total(metrics.DECODE_OUTDATED) == 0
            monkeypatch.setattr(f"feedd.workers.supervisor.{name}", value)
            os.kill(pool.worker_pids[0], signal.SIGKILL)
            await asyncio.sleep(LIMIT_S)

    with pytest.raises(BaseExceptionGroup) as caught:
        await upgraded()
    (error,) = caught.value.exceptions
    assert isinstance(error, Internal)
    assert "upgraded while the daemon ran" in str(error)
    assert recorder.total(metrics.DECODE_OUTDATED) == 1
