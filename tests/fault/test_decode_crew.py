"""The crew: grows, shrinks and renews itself without losing a row, and a row that kills costs two workers, once."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd import metrics
from feedd.errors import BadSample, BadShard, WorkerLost
from feedd.recipe.recipe import parse_field
from feedd.workers import autoscaler
from feedd.workers import autoscaler as autotune
from feedd.workers.autoscaler import Load
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions, FieldWork
from tests.budget import later
from tests.fakes import fetchers, poison_worker
from tests.fakes.decoding import decoding
from tests.fakes.feeding import batches, feeding
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import image_samples, shard_file, tar_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.shard_index import ShardIndex
    from feedd.values import ShardFile
    from tests.fakes.decoding import Rig

pytestmark = pytest.mark.slow

IDLE = Load(60.0, 0.0, 0.0, 1)
until = partial(fetchers.until, limit_s=30.0)


@pytest.fixture(autouse=True)
def _unattended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody look after the crew but the test, unless it says how often."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 3600.0)


def texts(path: Path, *values: bytes) -> ShardFile:
    """Return a shard with one ``x`` field per value."""
    return shard_file(path / "x.tar", tar_bytes((f"{n}", {"x": value}) for n, value in enumerate(values)))


def weak(**options: object) -> DecodeOptions:
    """Return options for workers that samples can kill."""
    return DecodeOptions(**{"chunk_rows": 4, "command": poison_worker.COMMAND, **options})  # type: ignore[arg-type]  # as written in each test


def full(workers: int) -> Load:
    """Return ten seconds in which all were at work and more waited."""
    return Load(10.0, 10.0 * workers, 10.0, workers)


async def test_the_crew_grows_and_shrinks_without_losing_a_row(tmp_path: Path) -> None:
    """Workers come and go in the middle of decoding: nothing is replayed, no worker counts as dead, bytes are equal."""
    photos = shard_file(tmp_path / "a.tar", tar_bytes(image_samples(24, height=200, width=300) * 4))
    fields = {"jpg": "image:40x40:random", "cls": "int"}
    async with decoding([photos], DecodeOptions(workers=1, workers_max=3, chunk_rows=2)) as rig:
        look = rig.pool._autoscaler
        _, expected = await rig.decode(fields)
        for size in (2, 3):
            look.resize(full(size - 1))
            await until(lambda size=size: len(rig.pool.worker_pids) == size)  # type: ignore[misc]  # bound at once
        pids = rig.pool.worker_pids
        for _ in range(2):  # one call at a time: all decode into the same slot
            async with asyncio.TaskGroup() as group:
                call = group.create_task(rig.decode(fields))
                await rig.started()
                look.resize(IDLE)
            assert (call.result()[0].bad, call.result()[1]) == ((), expected)
        assert rig.pool.worker_pids == pids[:1]
        await until(lambda: rig.recorder.total(metrics.DECODE_WORKERS) == 1)
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0
        assert rig.recorder.total(metrics.DECODE_RESIZES, direction="up") == 2
        assert rig.recorder.total(metrics.DECODE_RESIZES, direction="down") == 2
        assert rig.recorder.total(metrics.DECODE_WANTED) == 1
    assert rig.recorder.total(metrics.DECODE_WANTED) == rig.recorder.total(metrics.DECODE_WORKERS) == 0


async def test_demand_that_is_measured_brings_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait make the crew grow to its bound and no further; once there is nothing to do it shrinks again."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.05)
    monkeypatch.setattr(autotune, "GROW_AFTER_S", 0.1)
    monkeypatch.setattr(autotune, "SHRINK_AFTER_S", 0.5)
    monkeypatch.setattr(autotune, "SHRINK_EVERY_S", 0.1)
    file = texts(tmp_path, *[b"slow %d" % n for n in range(64)])
    async with decoding([file], weak(workers=1, workers_max=3, chunk_rows=1)) as rig:
        result, _ = await rig.decode({"x": "bytes"})
        assert result.bad == ()
        assert rig.recorder.peaks[metrics.DECODE_WORKERS.name] == 3
        assert rig.recorder.peaks[metrics.DECODE_DEMAND.name] > 1
        assert rig.recorder.peaks[metrics.QUEUE_ITEMS.name] > 4, "more rows than workers hold"
        assert rig.recorder.total(metrics.QUEUE_NONEMPTY, queue="tasks") > 0.1
        await until(lambda: rig.recorder.total(metrics.DECODE_WORKERS) == 1)
        await until(lambda: rig.recorder.total(metrics.DECODE_DEMAND) == 0)
        assert rig.recorder.total(metrics.QUEUE_ITEMS, queue="tasks") == 0
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0


async def test_a_fixed_number_stays_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operator named a number, no load changes it."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.02)
    monkeypatch.setattr(autotune, "GROW_AFTER_S", 0.05)
    async with decoding([texts(tmp_path, *[b"slow"] * 8)], weak(workers=1, chunk_rows=1)) as rig:
        await rig.decode({"x": "bytes"})
        assert rig.recorder.peaks[metrics.DECODE_WORKERS.name] == 1
        assert rig.recorder.total(metrics.DECODE_WANTED) == 1


async def test_a_worker_let_go_that_hangs_is_killed_and_its_rows_come_again(tmp_path: Path) -> None:
    """A worker that stops in the middle of what it holds while it is let go is replaced by the others."""
    values = [b"slow %d" % n for n in range(12)]
    async with decoding([texts(tmp_path, *values)], weak(workers=1, workers_max=2, task_deadline_s=1.5)) as rig:
        rig.pool._autoscaler.resize(full(1))
        await until(lambda: len(rig.pool.worker_pids) == 2)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.decode({"x": "bytes"}))
            await asyncio.sleep(0.1)
            os.kill(rig.pool.worker_pids[1], signal.SIGSTOP)
            rig.pool._autoscaler.resize(IDLE)
        assert (call.result()[0].bad, call.result()[1]["x"]) == ((), values)
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 1
        await until(lambda: rig.recorder.total(metrics.DECODE_WORKERS) == 1)


async def test_a_worker_that_grows_is_replaced_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leak ends with its worker: the next one is there before it goes, no row is lost and none dies of it."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.02)
    values = [b"leak %d" % n for n in range(16)]
    async with decoding([texts(tmp_path, *values)], weak(workers=1, recycle_growth_bytes=24 << 20)) as rig:
        first = rig.pool.worker_pids
        seen: set[int] = set()
        while rig.recorder.total(metrics.DECODE_RECYCLED) < 2:
            result, rows = await rig.decode({"x": "bytes"})
            assert (result.bad, rows["x"]) == ((), values)
            assert rig.pool.worker_pids, "expected a worker at any time"
            seen.update(rig.pool.worker_pids)
        assert len(seen - set(first)) >= 1
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0
        await until(lambda: rig.recorder.total(metrics.DECODE_WORKERS) == 1)
        assert first != rig.pool.worker_pids


async def test_a_worker_that_does_not_grow_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory within the limit, and any growth where the limit is 0, replaces nobody."""
    monkeypatch.setattr(autoscaler, "PERIOD_S", 0.01)
    for values, growth_bytes in (([b"fine"] * 8, 24 << 20), ([b"leak"] * 32, 0)):
        async with decoding([texts(tmp_path, *values)], weak(recycle_growth_bytes=growth_bytes)) as rig:
            pids = rig.pool.worker_pids
            for _ in range(4):
                await rig.decode({"x": "bytes"})
                await asyncio.sleep(0.05)
            assert rig.pool.worker_pids == pids
            assert rig.recorder.total(metrics.DECODE_RECYCLED) == 0


async def test_a_worker_that_cannot_be_added_ends_nothing(tmp_path: Path) -> None:
    """Where growth fails (no more processes, no memory) the crew goes on as it is, and asks again later."""
    once = tmp_path / "started"
    script = f'if [ -e {once} ]; then exit 1; fi; : > {once}; exec "$@"'
    command = ("sh", "-c", script, "worker", *poison_worker.COMMAND)
    async with decoding([texts(tmp_path, b"a", b"b")], weak(workers=1, workers_max=2, command=command)) as rig:
        rig.pool._autoscaler.resize(full(1))
        assert rig.recorder.total(metrics.DECODE_WANTED) == 2
        await until(lambda: rig.recorder.total(metrics.DECODE_WANTED) == 1)
        assert (await rig.decode({"x": "bytes"}))[1]["x"] == [b"a", b"b"]
        assert len(rig.pool.worker_pids) == 1


async def test_workers_keep_to_their_cores() -> None:
    """With cores named, every worker runs on those and nowhere else; the daemon's own stay what they were."""
    before = os.sched_getaffinity(0)
    core = max(before)
    async with DecodePool(DecodeOptions(workers=2, cpus=(core,)), TallyRecorder()) as pool:
        assert [os.sched_getaffinity(pid) for pid in pool.worker_pids] == [{core}] * 2
        assert os.sched_getaffinity(0) == before
    async with DecodePool(DecodeOptions(), TallyRecorder()) as pool:
        assert os.sched_getaffinity(pool.worker_pids[0]) == before


async def test_cores_that_are_not_there_are_an_error_at_entry(capfd: pytest.CaptureFixture[str]) -> None:
    """A core taken from the machine after the configuration was read: the worker says so and does not start."""
    with pytest.raises(WorkerLost, match="start"):
        async with DecodePool(DecodeOptions(cpus=(1023,)), TallyRecorder()):
            pytest.fail("entered without a worker")
    assert "expected to run on cores 1023" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("weakness", "reason"), [(b"segfault", "SIGSEGV"), later(b"kill", "SIGKILL"), (b"stop", "ran past")]
)
async def test_a_row_that_kills_costs_two_workers_once(tmp_path: Path, weakness: bytes, reason: str) -> None:
    """A poison row among 64 is found with two workers lost, by crash or hang; read again, it costs none."""
    values = [b"value %d" % n for n in range(64)]
    values[37] = weakness
    others = [value for value in values if value != weakness]
    async with decoding([texts(tmp_path, *values)], weak(workers=2, chunk_rows=32, task_deadline_s=1.5)) as rig:
        for _ in range(3):
            result, rows = await rig.decode({"x": "bytes"})
            assert [(bad.row, bad.field) for bad in result.bad] == [(37, "x")]
            assert reason in result.bad[0].reason
            assert [row for n, row in enumerate(rows["x"]) if n != 37] == others
            assert rig.recorder.total(metrics.DECODE_RESTARTS) == 2
        fewer, _ = await rig.decode({"x": "bytes"}, rows=30)
        assert fewer.bad == ()


async def test_a_row_that_kills_while_measured_is_not_tried_again_by_decoding(tmp_path: Path) -> None:
    """Measuring finds it out with two workers lost; decoding then reports it, with the reason, at no further cost."""
    file = texts(tmp_path, b"abc", b"segfault", b"d")
    async with decoding([file], weak(workers=1)) as rig:
        task, _ = await rig.task({"x": "str"})
        work = task.fields[0]
        raw = FieldWork(parse_field("x", "bytes"), work.file_no, work.start, work.size, work.start)
        for _ in range(2):
            assert (await rig.pool.measure(task.files, raw)).tolist() == [[3], [-1], [1]]
        shaped = FieldWork(raw.recipe, raw.file_no, raw.start, raw.size, work.out_at, np.array([[3], [-1], [1]]))
        again = type(task)(task.files, task.arena_id, task.slot_at, (shaped,), task.seeds)
        result = await rig.pool.decode(again)
        assert [(bad.row, bad.reason) for bad in result.bad] == [(1, "worker died: SIGSEGV")]
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 2


async def _index_of(rig: Rig) -> ShardIndex:
    return await rig.pool.index(rig.files[0], "tar")


@pytest.mark.parametrize(("weakness", "reason"), [(b"segfault", "SIGSEGV"), (b"stop", "ran past 1 s")])
async def test_a_shard_that_kills_its_reader_is_a_bad_shard(tmp_path: Path, weakness: bytes, reason: str) -> None:
    """A shard whose framing kills or hangs two workers is named; the pool goes on."""
    good = texts(tmp_path, b"a")
    poison = shard_file(tmp_path / "poison.tar", weakness + bytes(1024))
    async with decoding([good], weak(task_deadline_s=1.0)) as rig:
        with pytest.raises(BadShard, match=rf"killed two workers \({reason}\).*poison\.tar"):
            await rig.pool.index(poison, "tar")
        assert (await _index_of(rig)).sample_count == 1
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 2


async def test_a_first_sample_that_kills_its_reader_is_a_bad_sample(tmp_path: Path) -> None:
    """A field that cannot be pinned because looking at it kills two workers is named; the pool goes on."""
    async with decoding([texts(tmp_path, b"segfault")], weak()) as rig:
        index = await _index_of(rig)
        with pytest.raises(BadSample, match=r"first x.*killed two workers.*x\.tar"):
            await rig.pool.resolve(rig.files[0], index, [parse_field("x", "npy")])
        assert (await _index_of(rig)).sample_count == 1


async def test_a_sample_that_kills_is_named_by_its_key(tmp_path: Path) -> None:
    """What the trainer is told of a poison sample: shard, key, field and how the workers died."""
    async with feeding(tmp_path, decode=weak(workers=1)) as rig:
        for shard in range(6):
            rig.store.shard(shard, [{"x": b"kill" if (shard, n) == (2, 1) else b"fine"} for n in range(2)])
        session = await rig.open(fields=(("x", "bytes"),))
        with pytest.raises(BadSample, match=r"sample '02001', field 'x'.*worker died: SIGKILL.*02\.tar"):
            await batches(session)
