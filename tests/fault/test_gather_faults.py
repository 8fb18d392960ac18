"""Workers that die while they copy columns cost the batches that killed them, and no other."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd import metrics
from feedd.recipe.recipe import parse_field
from feedd.workers.work import Column, DecodeOptions, GatherTask
from tests.budget import PATIENT_S
from tests.fakes.decoding import ARENA_ID, decoding
from tests.fakes.tars import shard_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import ShardFile

pytestmark = pytest.mark.slow

ROWS, BATCHES = 512, 16  # of a page each
NUMBERS = np.arange(ROWS * BATCHES, dtype=np.int64)
BACKWARD = NUMBERS.reshape(BATCHES, ROWS)[:, ::-1].reshape(-1)  # in each batch
EACH_ORDER = pytest.mark.parametrize("numbers", [NUMBERS, BACKWARD], ids=["forward", "backward"])


def _task(file: ShardFile, numbers: NDArray[np.int64] = NUMBERS) -> GatherTask:
    """Copy these rows, a batch after the other. Unless they are in the file's order, they travel in the arena."""
    recipe = parse_field("x", '{"decode": "tensor", "dtype": "int64", "shape": [1]}')
    column = Column(recipe, np.zeros(1, np.int64), np.full(1, 8, np.int64))
    ends = np.arange(1, BATCHES + 1) * ROWS
    out_at = (np.arange(BATCHES) * ROWS * 8).reshape(-1, 1)
    rows = np.zeros(len(numbers), np.int32), numbers
    return GatherTask((file,), ARENA_ID, (column,), *rows, ends, out_at, in_order=True)


def _maps(pid: int, file: ShardFile) -> bool:
    """Whether a worker has the file in its memory; another one would look at its length first."""
    return file.path in Path(f"/proc/{pid}/maps").read_text()


@EACH_ORDER
async def test_a_file_that_is_cut_off_costs_the_batches_behind_the_cut(
    tmp_path: Path, numbers: NDArray[np.int64]
) -> None:
    """Its pages are gone while it is mapped: reading them ends a worker, so these batches are left to be decoded.

    If rows travel in the arena, a worker that dies has copied batches over some of them.
    """
    file = shard_file(tmp_path / "x", NUMBERS.tobytes())
    async with decoding([file], DecodeOptions(workers=2)) as rig:
        async with asyncio.timeout(PATIENT_S):
            while not all(_maps(pid, file) for pid in rig.pool.worker_pids):  # a worker that starts late takes no part
                assert not len(await rig.pool.gather(_task(file, numbers)))
        assert os.pread(rig.fd, NUMBERS.nbytes, 0) == numbers.tobytes()
        os.pwrite(rig.fd, bytes(NUMBERS.nbytes), 0)
        os.truncate(file.path, file.data_at + NUMBERS.nbytes - 4096)
        undone = await rig.pool.gather(_task(file, numbers))
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 2
        assert undone.tolist() == list(range((BATCHES - 1) * ROWS, BATCHES * ROWS))
        whole = numbers[: (BATCHES - 1) * ROWS].tobytes()
        assert os.pread(rig.fd, len(whole), 0) == whole


@EACH_ORDER
async def test_a_killed_worker_changes_no_byte(tmp_path: Path, numbers: NDArray[np.int64]) -> None:
    """Kill -9 of a worker costs a replay."""
    file = shard_file(tmp_path / "x", NUMBERS.tobytes())
    async with decoding([file], DecodeOptions(workers=1)) as rig:
        os.kill(rig.pool.worker_pids[0], signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.pool.gather(_task(file, numbers)))
            await asyncio.sleep(0)
            os.kill(rig.pool.worker_pids[0], signal.SIGKILL)
        assert not len(call.result())
        assert os.pread(rig.fd, NUMBERS.nbytes, 0) == numbers.tobytes()
        assert rig.recorder.total(metrics.DECODE_RESTARTS) == 1
