"""Clients and daemons that vanish: whoever dies, however, every slot comes back and no file stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from feedd import metrics
from feedd.errors import StoreUnavailable
from feedd.serve.server_options import ServeHooks, ServeOptions
from feedd.wire import feedd_pb2 as pb
from tests.budget import PATIENT_S
from tests.fakes.backend import SPECS, FakeScript, expected_payload
from tests.unit.serve.raw_client import attach, release, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0


@asynccontextmanager
async def process(*args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python program until it says ``ready``; it is killed at the end if it still lives."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *args, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(START_S):
            while (line := await child.stdout.readline()) != b"ready\n":
                assert line, f"the process ended with {await child.wait()}"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        child._transport.close()  # type: ignore[attr-defined]  # its pipe would be closed by the collector only


def client(folder: Path, mode: str, credits: int = 0, batches: int = 0) -> tuple[str, ...]:
    """Return the arguments of a client process that gives so many credits and is ready after so many batches."""
    script = Path(__file__).with_name("serve_client.py")
    return (str(script), f"{folder}/feedd.sock", mode, str(credits), str(batches))


def mapped(pid: int, what: str) -> list[str]:
    """Return a process's mappings whose name contains ``what``."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in maps if what in line]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_client_killed_with_leases(short_dir: Path, how: signal.Signals) -> None:
    """Its slots are reclaimed, its session is closed, and no memory with a name was ever used."""
    named = mapped(os.getpid(), "/dev/shm")
    async with serving(short_dir) as rig, process(*client(short_dir, "lease", 3, 3)) as child:
        assert rig.recorder.total(metrics.SERVE_LEASES) == 3
        assert rig.recorder.total(metrics.SERVE_SESSIONS) == 1
        assert mapped(child.pid, "/memfd:feedd-arena")
        assert not mapped(child.pid, "/dev/shm")
        assert mapped(os.getpid(), "/dev/shm") == named, "what a kill would leave behind"
        child.send_signal(how)
        await rig.until(lambda: rig.server.sessions.count == 0)
        await rig.until(lambda: rig.backend.open_count == 0)
        assert rig.recorder.total(metrics.SERVE_LEASES) == 0
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 3
        assert rig.backend.sessions[0].close_count == 1
        opened = await rig.open()
        assert opened.slot_count == 4


@pytest.mark.slow
async def test_a_client_killed_while_its_batch_is_made(short_dir: Path) -> None:
    """The production is cancelled before its slot is reclaimed and the arena goes."""
    script = FakeScript(gates={1: asyncio.Event()})
    async with serving(short_dir, script) as rig, process(*client(short_dir, "lease", 2, 1)) as child:
        session = rig.backend.sessions[0]
        assert session.producing_count == 1
        assert rig.recorder.total(metrics.SERVE_LEASES) == 2
        child.kill()
        await rig.until(lambda: session.close_count == 1)
        assert session.producing_count == 0
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 1
        assert rig.recorder.total(metrics.SERVE_LEASES) == 0


@pytest.mark.slow
async def test_an_inline_client_killed_in_its_stream(short_dir: Path) -> None:
    """A session without lifeline ends after its grace."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), session_grace_s=0.5)
    async with serving(short_dir, None, options) as rig:
        async with process(*client(short_dir, "inline", 2, 1)) as child:
            child.kill()
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert rig.backend.sessions[0].close_count == 1
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 0


@pytest.mark.slow
async def test_the_last_holder_killed(short_dir: Path) -> None:
    """An ephemeral daemon hears when nobody holds it any more."""
    heard: list[int] = []
    hooks = ServeHooks(on_holders=heard.append)
    async with serving(short_dir, hooks=hooks) as rig, process(*client(short_dir, "hold")) as child:
        assert heard == [1]
        child.kill()
        await rig.until(lambda: heard == [1, 0])


async def test_a_stream_that_goes_leaves_leases_with_their_holder(short_dir: Path) -> None:
    """While the client's process lives, its leases stay readable and unused by others, stream or not."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), session_grace_s=0.2)
    async with serving(short_dir, None, options) as rig:
        opened = await rig.open(prefetch_batches=3)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=2)
        await stream.until(2)
        stream.call.cancel()
        await rig.until(lambda: rig.server.sessions.all[0].call is None)
        await asyncio.sleep(0.3)  # longer than the grace, which does not apply
        assert rig.server.sessions.count == 1
        again = await rig.stream(opened.session_id, credits=3, step=2)
        await again.until(1)
        for batch in (*stream.batches, *again.batches):
            assert arena.payload(batch) == expected_payload(SPECS, 0, batch.cursor.step, 0, 4)
        await again.send(releases=[release(batch) for batch in stream.batches])
        await again.until(3)
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 0
        again.call.cancel()
        arena.close()


async def test_a_client_that_stops_reading_holds_up_nobody(short_dir: Path) -> None:
    """Flow control stops the one stream whose client does not read; others go on; its end frees its slots."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), session_grace_s=0.5)
    script = FakeScript(steps=10_000, slot_bytes=8 << 20)
    async with serving(short_dir, script, options) as rig:
        stuck = await rig.open(recipe={"batch_size": 20_000}, prefetch_batches=4)
        stream = await rig.stream(stuck.session_id, credits=64, inline_only=True)
        session = rig.backend.sessions[0]
        await rig.until(lambda: len(session.produced) >= 4)
        other = await rig.open()
        good = await rig.stream(other.session_id, credits=20, inline_only=True)
        await good.until(20)
        assert len(session.produced) < 64, "a client that does not read must not be sent everything"
        stream.call.cancel()
        good.call.cancel()
        await rig.until(lambda: rig.server.sessions.count == 0)


async def test_an_error_in_the_middle_then_a_reconnect_from_the_cursor(short_dir: Path) -> None:
    """After a retryable error the client goes on where it was: every step once, in order."""
    script = FakeScript(steps=9, faults={3: StoreUnavailable("expected an answer, got a reset")})
    async with serving(short_dir, script) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        steps: list[int] = []
        stream = await rig.stream(opened.session_id, credits=4)
        while stream.error is None:
            assert await stream.read()
        assert stream.error.retryable
        steps += [batch.cursor.step for batch in stream.batches]
        await stream.send(releases=[release(batch) for batch in stream.batches])
        await stream.finish()
        script.faults.clear()
        again = await rig.stream(opened.session_id, credits=4, step=steps[-1] + 1)
        released = 0
        while again.end is None:
            assert await again.read()
            fresh = again.batches[released:]
            released += len(fresh)
            await again.send(credits=len(fresh), releases=[release(batch) for batch in fresh])
        await again.finish()
        steps += [batch.cursor.step for batch in again.batches]
        assert steps == list(range(9))
        assert rig.recorder.total(metrics.SERVE_LEASES) == 0
        arena.close()


async def test_clients_that_come_and_go_at_every_moment(short_dir: Path) -> None:
    """Cancelling at any point of any call leaves no session, no slot and no production behind."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), session_grace_s=0.5)
    async with serving(short_dir, FakeScript(steps=50), options) as rig:

        async def visit(turns: int) -> None:
            opened = await rig.open()
            stream = await rig.stream(opened.session_id, credits=1 + turns % 4, inline_only=turns % 2 == 0)
            for _ in range(turns):
                await asyncio.sleep(0)
            stream.call.cancel()

        async with asyncio.TaskGroup() as group:
            for turns in range(0, 60, 3):
                group.create_task(visit(turns))
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert all(session.producing_count == 0 for session in rig.backend.sessions)


async def test_an_open_given_up_leaves_nothing(short_dir: Path) -> None:
    """A client that goes while the dataset is being opened leaves no session."""
    script = FakeScript(open_gate=asyncio.Event())
    async with serving(short_dir, script) as rig:
        opening = asyncio.ensure_future(rig.open())
        await rig.until(lambda: len(rig.backend.specs) == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert script.open_gate is not None
        await rig.until(lambda: rig.server.sessions.admissions.opening_count == 0)
        script.open_gate.set()
        assert (await rig.open()).slot_count == 4
        assert len(rig.backend.sessions) == 1


async def test_a_production_that_does_not_end_keeps_its_memory(short_dir: Path) -> None:
    """An arena somebody still writes into is not given back, however its session is closed; later it is."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), close_timeout_s=0.05)
    gate = asyncio.Event()
    async with serving(short_dir, FakeScript(gates={0: gate}, stubborn=True), options) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        session = rig.backend.sessions[0]
        await rig.until(lambda: session.producing_count == 1)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id), timeout=PATIENT_S)
        assert session.close_count == 0
        assert session.arena.taken_count == 1
        again = await rig.stream(opened.session_id, credits=1, inline_only=True)
        assert await again.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (hosted,) = rig.server.sessions._by_id.values()
        rig.server.sessions._options = replace(options, close_timeout_s=30)
        closings = [asyncio.create_task(rig.server.sessions.close(hosted)) for _ in range(2)]
        await rig.until(lambda: hosted.closing)
        await asyncio.sleep(0)
        assert not any(closing.done() for closing in closings), "a later close has not ended because an earlier gave up"
        gate.set()
        await stream.finish()
        await asyncio.gather(*closings)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id), timeout=PATIENT_S)
        assert session.close_count == 1
