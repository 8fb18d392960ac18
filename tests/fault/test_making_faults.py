"""Workers that die, hang or are called off while they make shards."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
from typing import TYPE_CHECKING

import pytest

from feedd import metrics
from feedd.errors import BadShard, Draining, ResourceExhausted, Unsupported
from feedd.tables.task import ConvertedShard
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions
from tests.fakes import poison_worker
from tests.fakes.decoding import decoding
from tests.fakes.fetchers import until
from tests.fakes.made import making
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import shard_file, tar_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def weak(workers: int = 1, **options: float) -> DecodeOptions:
    """Workers with a weakness."""
    return DecodeOptions(workers=workers, command=poison_worker.COMMAND, **options)  # type: ignore[arg-type]  # floats only


async def test_a_making_survives_its_worker(tmp_path: Path) -> None:
    """A worker killed half-way is replaced and the shard made from its start."""
    said = f"once:{tmp_path / 'died'}".encode()
    recorder = TallyRecorder()
    async with DecodePool(weak(), recorder) as pool:
        with making(said) as it:
            made = await pool.make(it.task("poison", "a"))
            assert isinstance(made, ConvertedShard)
            assert (it.written(), made.size_bytes) == (said, len(said))
    assert recorder.total(metrics.DECODE_RESTARTS) == 1


async def test_an_object_that_kills_two_workers_is_bad() -> None:
    """It costs two workers, and others' makings nothing."""
    async with DecodePool(weak(2), TallyRecorder()) as pool:
        with making(b"segfault") as it, making(gzip.compress(b"x")) as other:
            with pytest.raises(BadShard, match="killed two workers") as caught:
                await pool.make(it.task("poison", "a"))
            assert caught.value.object.endswith("/a")
            assert isinstance(await pool.make(other.task("gunzip", "b.txt.gz")), ConvertedShard)


async def test_a_making_that_hangs_is_ended_at_its_deadline() -> None:
    """A stopped worker is killed when the deadline of this making passes, twice; then the object is bad."""
    async with DecodePool(weak(task_deadline_s=1.0), TallyRecorder()) as pool:
        with making(b"stop") as it, pytest.raises(BadShard, match="ran past"):
            await pool.make(it.task("poison", "a"))


async def test_a_cancelled_making_writes_no_more() -> None:
    """When the cancellation arrives, the worker is done or dead."""
    async with DecodePool(weak(cancel_grace_s=0.2), TallyRecorder()) as pool:
        with making(b"stop") as it:
            task = asyncio.ensure_future(pool.make(it.task("poison", "a")))
            await until(it.written)
            (pid,) = pool.worker_pids
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert pid not in pool.worker_pids
        with making(b"fine") as it:
            assert isinstance(await pool.make(it.task("poison", "a")), ConvertedShard)


async def test_closing_ends_makings() -> None:
    """A pool that closes sends those who wait away, and kills who is busy."""
    with making(b"stop") as it:
        async with DecodePool(weak(), TallyRecorder()) as pool:
            task = asyncio.ensure_future(pool.make(it.task("poison", "a")))
            await until(it.written)
        with pytest.raises(Draining):
            await task


async def test_decoding_goes_on_beside_a_making(tmp_path: Path) -> None:
    """While one worker makes a shard, for however long, the others decode."""
    shard = shard_file(tmp_path / "a.tar", tar_bytes([(f"{n}", {"cls": b"%d" % n}) for n in range(40)]))
    async with decoding([shard], weak(2, cancel_grace_s=0.2)) as rig:
        with making(b"stop") as it:
            task = asyncio.ensure_future(rig.pool.make(it.task("poison", "a")))
            await until(it.written)
            for _ in range(3):
                result, rows = await rig.decode({"cls": "int"})
                assert (result.bad, len(rows["cls"])) == ((), 40)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])


async def test_what_cannot_be_made_says_why() -> None:
    """Limits, lack of memory and unknown forms are errors of their own."""
    packed = gzip.compress(bytes(1 << 20))
    async with DecodePool(DecodeOptions(), TallyRecorder()) as pool:
        with making(packed) as it:
            with pytest.raises(BadShard, match="at most 1000B"):
                await pool.make(it.task("gunzip", "a.txt.gz", limit_bytes=1000))
            with pytest.raises(ResourceExhausted, match="memory"):
                await pool.make(it.task("gunzip", "a.txt.gz", memory_bytes=1000))
            with pytest.raises(Unsupported):
                await pool.make(it.task("unrar", "a.txt.rar"))
            with pytest.raises(Unsupported):
                await pool.make(it.task("gunzip", "a.beton.gz"))
            made = await pool.make(it.task("gunzip", "a.txt.gz"))
            assert isinstance(made, ConvertedShard)
            assert it.written() == bytes(1 << 20)


async def test_a_worker_killed_from_outside_is_no_loss() -> None:
    """SIGKILL at any moment, as by the OOM killer, costs a replay."""
    packed = gzip.compress(os.urandom(1 << 20) * 8)
    async with DecodePool(DecodeOptions(workers=2), TallyRecorder()) as pool:
        with making(packed) as it:
            task = asyncio.ensure_future(pool.make(it.task("gunzip", "a.txt.gz")))
            await until(it.written)
            os.kill(pool.worker_pids[0], signal.SIGKILL)
            made = await task
            assert isinstance(made, ConvertedShard)
            assert it.written() == gzip.decompress(packed)
