"""Workers that die, hang and stop: what was decoded is the same, what cannot be is named, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from feedd import metrics
from feedd.errors import Draining
from feedd.recipe.recipe import parse_field
from feedd.workers import dispatch
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions, FieldWork
from tests.budget import PATIENT_S, later
from tests.fakes import poison_worker
from tests.fakes.decoding import SLOT_AT, decoding
from tests.fakes.fetchers import until
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import image_samples, shard_file, tar_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from feedd.values import ShardFile

pytestmark = pytest.mark.slow

FIELDS = {"jpg": "image:40x40:random", "cls": "int"}


@pytest.fixture
def photos(tmp_path: Path) -> ShardFile:
    """A shard of 96 images, large enough that a decode takes a while."""
    return shard_file(tmp_path / "a.tar", tar_bytes(image_samples(24, height=200, width=300) * 4))


def texts(path: Path, *values: bytes) -> ShardFile:
    """Return a shard with one ``x`` field per value."""
    return shard_file(path / "x.tar", tar_bytes((f"{n}", {"x": value}) for n, value in enumerate(values)))


def weak(workers: int = 2, **options: float) -> DecodeOptions:
    """Return options for workers that samples can kill."""
    chunk_rows = int(options.pop("chunk_rows", 4))
    return DecodeOptions(workers=workers, chunk_rows=chunk_rows, command=poison_worker.COMMAND, **options)  # type: ignore[arg-type]  # floats only


async def rows_of(photos: ShardFile) -> Mapping[str, Sequence[bytes]]:
    """Return what workers decode that nobody kills; of a pool of their own: one that knows rows makes larger chunks."""
    async with decoding([photos], DecodeOptions(workers=2, chunk_rows=4)) as rig:
        return (await rig.decode(FIELDS))[1]


@pytest.mark.parametrize("victims", [later(1), 2])
async def test_a_killed_worker_changes_no_byte(photos: ShardFile, victims: int) -> None:
    """Kill -9 of one or all workers in the middle of a task: the batch is complete and byte for byte the same."""
    expected = await rows_of(photos)
    async with decoding([photos], DecodeOptions(workers=2, chunk_rows=4)) as rig:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.decode(FIELDS))
            await rig.started()
            for pid in rig.pool.worker_pids[:victims]:
                os.kill(pid, signal.SIGKILL)
        result, rows = call.result()
        assert (result.bad, rows) == ((), expected)
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == victims


async def test_a_stopped_worker_is_killed_at_its_deadline(photos: ShardFile) -> None:
    """A worker that hangs (here: SIGSTOP) is killed when the deadline passes, and its rows are decoded elsewhere."""
    expected = await rows_of(photos)
    async with decoding([photos], DecodeOptions(workers=2, chunk_rows=4, task_deadline_s=1.0)) as rig:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.decode(FIELDS))
            await rig.started()
            os.kill(rig.pool.worker_pids[0], signal.SIGSTOP)
        result, rows = call.result()
        assert (result.bad, rows) == ((), expected)
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 1


async def test_a_poison_sample_costs_its_row_only(tmp_path: Path) -> None:
    """A sample that kills every worker is found and named; all other rows arrive, and the pool goes on."""
    values = [f"value {n}".encode() for n in range(20)]
    poisoned = list(values)
    poisoned[6] = b"segfault"
    poisoned[13] = b"segfault too"
    async with decoding([texts(tmp_path, *poisoned)], weak()) as rig:
        result, rows = await rig.decode({"x": "bytes"})
        assert [(bad.row, bad.field) for bad in result.bad] == [(6, "x"), (13, "x")]
        assert all(bad.reason == "worker died: SIGSEGV" for bad in result.bad)
        assert [row for n, row in enumerate(rows["x"]) if n not in {6, 13}] == values[:6] + values[7:13] + values[14:]
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 4
        again, _ = await rig.decode({"x": "bytes"})
        assert again.bad == result.bad


async def test_a_sample_that_kills_once_is_not_bad(tmp_path: Path) -> None:
    """A worker that died for a reason of its own costs a replay, no row."""
    once = f"once:{tmp_path / 'mark'}".encode()
    async with decoding([texts(tmp_path, b"a", once, b"c")], weak(workers=1)) as rig:
        result, rows = await rig.decode({"x": "bytes"})
        assert (result.bad, rows["x"]) == ((), [b"a", once, b"c"])
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 1


async def test_a_worker_that_died_before_it_read_a_sample_says_nothing_against_it(tmp_path: Path) -> None:
    """All workers killed at once: what the first one's death leaves is sent to the next, which is dead, too."""
    once = f"once:{tmp_path / 'mark'}".encode()
    async with decoding([texts(tmp_path, once)], weak(workers=2)) as rig:
        task, layout = await rig.task({"x": "bytes"})
        _, second = rig.pool._dispatch._schedule._free_workers[0]  # who is asked next stands first
        deaf = rig.pool._dispatch._children[second].pid
        os.kill(deaf, signal.SIGSTOP)  # it reads nothing any more, and nobody knows
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.pool.decode(task))
            await until(lambda: rig.recorder.total(metrics.DECODE_RESTARTS))
            os.kill(deaf, signal.SIGKILL)
        assert (call.result().bad, rig.read(layout)["x"]) == ((), [once])
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 2


async def test_a_sample_that_hangs_is_given_up_after_two_deadlines(tmp_path: Path) -> None:
    """A sample that stops every worker ends as a bad row that says the time ran out."""
    async with decoding([texts(tmp_path, b"a", b"stop", b"c")], weak(workers=1, task_deadline_s=1.0)) as rig:
        result, rows = await rig.decode({"x": "bytes"})
        assert [(bad.row, bad.reason) for bad in result.bad] == [(1, "worker died: ran past 1 s")]
        assert [rows["x"][0], rows["x"][2]] == [b"a", b"c"]


async def test_measuring_survives_poison(tmp_path: Path) -> None:
    """A sample that kills workers while being measured measures -1; the others are measured."""
    async with decoding([texts(tmp_path, b"abc", b"segfault", b"d")], weak(workers=1)) as rig:
        task, _ = await rig.task({"x": "str"})
        work = task.fields[0]
        weak_work = FieldWork(parse_field("x", "bytes"), work.file_no, work.start, work.size, work.start)
        assert (await rig.pool.measure(task.files, weak_work)).tolist() == [[3], [-1], [1]]


@pytest.mark.parametrize("chunk_rows", [later(1), 2, later(8)])
async def test_what_is_kept_survives_poison(tmp_path: Path, chunk_rows: int) -> None:
    """A sample that kills workers while it is produced is -1, and costs no other its values; no descriptor is left."""
    samples = [b"abc", b"segfault", b"", b"d", b"kill", b"ef"]
    async with decoding([texts(tmp_path, *samples)], weak(workers=1, chunk_rows=chunk_rows)) as rig:
        task, _ = await rig.task({"x": "str"})
        work = task.fields[0]
        weak_work = FieldWork(parse_field("x", "bytes"), work.file_no, work.start, work.size, work.start)
        shapes, pieces = await rig.pool.produce(task.files, weak_work)
        assert shapes.tolist() == [[3], [-1], [0], [1], [-1], [2]]
        assert b"".join(piece.values.tobytes() for piece in pieces) == b"abcdef"
        for piece in pieces:
            here = [one for row in piece.rows if shapes[row, 0] >= 0 for one in samples[row]]
            assert piece.values.tolist() == here


async def test_a_cancelled_decode_leaves_the_slot_alone(tmp_path: Path) -> None:
    """When the CancelledError arrives, nothing writes into the slot any more, and the pool serves the next call."""
    values = [b"slow %d" % n for n in range(24)]
    async with decoding([texts(tmp_path, *values)], weak(chunk_rows=2)) as rig:
        task, layout = await rig.task({"x": "bytes"})
        call = asyncio.create_task(rig.pool.decode(task))
        await rig.started()
        for _ in range(3):  # as task groups inside each other do, which end together
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        before = rig.read(layout)
        assert any(row == value for row, value in zip(before["x"], values, strict=True))
        assert any(row != value for row, value in zip(before["x"], values, strict=True))
        assert (await rig.pool.index(rig.files[0], "tar")).sample_count == 24
        assert rig.read(layout) == before
        assert rig.recorder.total(metrics.DECODE_TASKS) == 0
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0


async def test_a_cancelled_decode_does_not_wait_for_a_hanging_worker(tmp_path: Path) -> None:
    """A worker that does not finish within the grace is killed, so that cancelling is bounded, however often."""
    file = texts(tmp_path, *[b"a"] * 4, *[b"stop"] * 8)
    for cancels in (1, 2):
        async with decoding([file], weak(cancel_grace_s=0.2, chunk_rows=4)) as rig:
            task, _ = await rig.task({"x": "bytes"})
            call = asyncio.create_task(rig.pool.decode(task))
            await rig.started()
            for _ in range(cancels):
                call.cancel()
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENT_S):
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert rig.recorder.total(metrics.DECODE_TASKS) == 0


async def test_rows_of_a_decode_that_was_given_up_are_never_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that outlives even its kill, and dies after the caller has gone, leaves nothing to be done again."""
    monkeypatch.setattr(dispatch, "_KILL_WAIT_S", 0.0)
    values = [b"slow %d" % n for n in range(8)]
    async with decoding([texts(tmp_path, *values)], weak(workers=1, chunk_rows=4, cancel_grace_s=0.0)) as rig:
        task, layout = await rig.task({"x": "bytes"})
        call = asyncio.create_task(rig.pool.decode(task))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        os.pwrite(rig.fd, b"\xa5" * layout.size_bytes, SLOT_AT)
        assert (await rig.pool.index(rig.files[0], "tar")).sample_count == 8  # behind whatever is replayed first
        assert set(b"".join(rig.read(layout)["x"])) == {0xA5}
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 1
        assert not rig.pool._dispatch._calls


async def test_a_failed_call_ends_only_when_its_rows_are_at_rest(tmp_path: Path) -> None:
    """When one chunk fails the call, decode raises after the other chunks have stopped writing."""
    values = [b"slow %d" % n for n in range(8)]
    async with decoding([texts(tmp_path, *values)], weak(chunk_rows=2)) as rig:
        task, layout = await rig.task({"x": "bytes"})
        task.fields[0].out_at[0] = 1 << 40  # outside the arena: the first chunk fails as a whole
        with pytest.raises(Exception, match="lie in the arena"):
            await rig.pool.decode(task)
        before = rig.read(layout)
        assert (await rig.pool.index(rig.files[0], "tar")).sample_count == 8
        assert rig.read(layout) == before


async def test_closing_fails_what_is_under_way(tmp_path: Path) -> None:
    """A call under way when the pool closes raises Draining, and the workers, hanging ones too, are gone."""
    file = texts(tmp_path, *[b"stop"] * 4)
    recorder = TallyRecorder()
    async with DecodePool(weak(chunk_rows=2), recorder) as pool:
        pids = pool.worker_pids
        index = await pool.index(file, "tar")
        work = FieldWork(
            parse_field("x", "bytes"), index.sizes[0].astype("i4") * 0, index.starts[0], index.sizes[0], index.starts[0]
        )
        call = asyncio.create_task(pool.measure((file,), work))
        await asyncio.sleep(0.05)
    with pytest.raises(Draining):
        await call
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert recorder.total(metrics.DECODE_WORKERS) == recorder.total(metrics.DECODE_TASKS) == 0


async def test_workers_die_with_their_daemon(tmp_path: Path) -> None:
    """When the process that owns the pool is killed, its workers are gone too: the kernel sees to it."""
    import subprocess  # noqa: PLC0415 - only here
    import sys  # noqa: PLC0415 - only here

    code = (
        "import asyncio\n"
        "from feedd.workers.pool import DecodePool\n"
        "from feedd.workers.work import DecodeOptions\n"
        "from tests.fakes.tally import TallyRecorder\n"
        "async def main():\n"
        "    async with DecodePool(DecodeOptions(workers=2), TallyRecorder()) as pool:\n"
        "        print(*pool.worker_pids, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - a daemon
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    watches = [os.pidfd_open(pid) for pid in pids]
    process.kill()
    process.wait(PATIENT_S)
    process.stdout.close()
    loop = asyncio.get_running_loop()
    try:
        for watch in watches:
            ended = asyncio.Event()
            loop.add_reader(watch, ended.set)
            async with asyncio.timeout(PATIENT_S):
                await ended.wait()
            loop.remove_reader(watch)
    finally:
        for watch in watches:
            os.close(watch)
