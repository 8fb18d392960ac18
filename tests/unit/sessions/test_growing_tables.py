"""Parquet files of several row groups: rows of those that are converted are read while others are on their way."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.errors import FeeddError, NotFound
from feedd.metrics import DECODE_RESTARTS, PIPELINE_MADE
from feedd.tables import parquet as parquet_file
from feedd.values import ByteRange, Cursor, Produced
from feedd.workers import supervisor
from feedd.workers.process import Child
from feedd.workers.work import DecodeOptions
from tests.budget import PATIENT_S
from tests.fakes.feeding import URL, Feeding, Taken, batches, feeding, take
from tests.fakes.fetchers import until
from tests.fakes.files import parquet
from tests.fakes.thread_worker import ThreadChild

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from feedd.range_sink import RangeSink
    from feedd.sessions.session import Session
    from feedd.values import ObjectRef, ReadProgress

GROUP_ROWS, GROUPS, BATCH = 5500, 8, 1000
FIRST = 5  # batches that need one row group only
ROWS = GROUP_ROWS * GROUPS
WORK_ROWS = 140_000  # of a row group that makes more than 1 MiB, so that a process converts it alone
LATE = 3  # the first row group of a part of several
VALUES = np.random.default_rng(5).permutation(ROWS)
FIELDS = (("n", "int"),)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each row group convert alone, however small; a worker that is a process would not see that."""
    monkeypatch.setattr(parquet_file, "_GROUPS_BYTES", 1)
    monkeypatch.setattr(supervisor, "Child", ThreadChild)


class Ranges:
    """Lets something happen to reads of a file, by the row group that begins where a read begins."""

    def __init__(self, rig: Feeding, data: bytes) -> None:
        metadata = pq.read_metadata(pa.BufferReader(data))
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        firsts, last = [group.column(0) for group in groups], groups[-1].column(groups[-1].num_columns - 1)
        self._starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in firsts]
        self._end = (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
        self.read: list[int] = []
        self.before: Callable[[int], Awaitable[object]] = _nothing
        self._read_into = rig.store.read_into
        rig.store.read_into = self.read_into  # type: ignore[method-assign]  # a wrapper

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read a range; all but footers lie in row groups."""
        if span.end <= self._end:
            group = max(number for number, start in enumerate(self._starts) if start <= span.start)
            self.read.append(group)
            await self.before(group)
        await self._read_into(ref, span, sink, progress)


async def _nothing(_: int) -> None:
    """Do nothing."""


@asynccontextmanager
async def growing(directory: Path, *, stats: bool = True, **columns: Any) -> AsyncIterator[tuple[Feeding, Ranges]]:
    """Open a pipeline over one file."""
    table = pa.table({**columns, "n": VALUES})
    data = parquet(table, row_group_size=GROUP_ROWS, compression="none", write_statistics=stats)
    async with feeding(directory) as rig:
        rig.store.put("train/0.parquet", data)
        yield rig, Ranges(rig, data)


async def opened(rig: Feeding, **changes: Any) -> Session:
    """Open a session in the files' order."""
    return await asyncio.wait_for(rig.open(**({"urls": (URL,), "fields": FIELDS, "batch_size": BATCH} | changes)), 30)


def held_back(ranges: Ranges, *allowed: int) -> asyncio.Event:
    """Let reads of all other row groups wait for the result."""
    gate = asyncio.Event()

    async def wait(group: int) -> None:
        if group not in allowed:
            await gate.wait()

    ranges.before = wait
    return gate


async def run_of(session: Session, at: Cursor, count: int) -> list[int]:
    """Produce a run of a session of runs; return the values of the last field."""
    assert session.info.run_batches >= count
    made = await asyncio.wait_for(session.produce(at, count), PATIENT_S)
    assert isinstance(made, Produced)
    values: list[int] = []
    for number in range(made.batch_count):
        at_bytes = number * session.info.batch_bytes + made.batch.regions[-1].values_at
        view = session.slots.view(made.slot)
        values += np.frombuffer(view, np.int64, BATCH, at_bytes).tolist()
    session.release(made.slot)
    return values


async def test_the_first_batches_need_one_row_group(tmp_path: Path) -> None:
    """The others arrive afterwards, each once, and all rows come in order."""
    async with growing(tmp_path) as (rig, ranges):
        gate = held_back(ranges, 0)
        session = await opened(rig, runs=True)
        assert await run_of(session, Cursor(0, 0), FIRST) == VALUES[: FIRST * BATCH].tolist()
        later = asyncio.ensure_future(run_of(session, Cursor(0, FIRST), 1))
        await until(lambda: len(set(ranges.read)) == GROUPS or ranges.read.count(3))
        assert not later.done()
        gate.set()
        assert await later == VALUES[FIRST * BATCH :][:BATCH].tolist()
        assert [one for batch in await batches(await opened(rig)) for one in batch.ints("n")] == VALUES.tolist()
        assert rig.recorder.total(PIPELINE_MADE) == 1
        assert len(ranges.read) == len(set(ranges.read))


@pytest.mark.parametrize("shuffle", [True, False])
async def test_the_order_is_that_of_a_file_that_does_not_grow(tmp_path: Path, *, shuffle: bool) -> None:
    """A file without statistics is converted at once."""
    orders = []
    for name in ("grows", "whole"):
        async with growing(tmp_path / name, stats=name == "grows") as (rig, ranges):
            session = await opened(rig, shuffle=shuffle)
            orders.append([one for batch in await batches(session) for one in batch.ints("n")])
            assert (len(ranges.read) == 1) == (name == "whole")
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(ROWS))
    assert (orders[0] == VALUES.tolist()) == (not shuffle)


async def test_an_error_of_a_later_row_group_comes_with_its_rows(tmp_path: Path) -> None:
    """Rows that came before it stay delivered, and a later try continues behind them."""
    async with growing(tmp_path) as (rig, ranges):
        gate, fails = asyncio.Event(), True

        async def lost(group: int) -> None:
            if group:
                await gate.wait()
            if fails and group == LATE:
                raise NotFound("it is gone", object=URL, stage="source")

        ranges.before = lost
        session = await opened(rig, runs=True)
        assert await run_of(session, Cursor(0, 0), FIRST) == VALUES[: FIRST * BATCH].tolist()
        gate.set()
        runs = [run_of(session, Cursor(0, step), FIRST) for step in range(FIRST, ROWS // BATCH, FIRST)]
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert "it is gone" in str(next(one for one in results if isinstance(one, FeeddError)))
        fails = False
        rest = await batches(await opened(rig), Cursor(0, FIRST))
        assert [one for batch in rest for one in batch.ints("n")] == VALUES[FIRST * BATCH :].tolist()


async def test_statistics_that_are_wrong_change_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were read early are right, and so are those of the table that is made anew, with another layout."""
    monkeypatch.setattr(parquet_file, "_has_all", lambda _: True)
    bad = pa.array([None if row == 5 * GROUP_ROWS else row for row in range(ROWS)])
    async with growing(tmp_path, a=bad) as (rig, ranges):
        gate = held_back(ranges, 0)
        asked = {"runs": True, "bad_samples": "replace", "bad_samples_max": 1}
        session = await opened(rig, **asked, fields=(("a", "int"), *FIELDS))
        found = await run_of(session, Cursor(0, 0), FIRST)
        gate.set()
        for step in range(FIRST, ROWS // BATCH, FIRST):
            found += await run_of(session, Cursor(0, step), FIRST)
        assert [row for row in range(ROWS) if found[row] != VALUES[row]] == [5 * GROUP_ROWS]


async def test_a_batch_that_waits_while_its_table_gets_another_layout_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked up in the layout that the footer told, and is looked up again."""
    monkeypatch.setattr(parquet_file, "_has_all", lambda _: True)
    bad = pa.array([None if row == LATE * GROUP_ROWS else row for row in range(ROWS)])
    async with growing(tmp_path, a=bad) as (rig, ranges):
        gate = held_back(ranges, 0)
        asked = {"bad_samples": "replace", "bad_samples_max": 1, "prefetch_batches": 2}
        session = await opened(rig, **asked, fields=(("a", "int"), *FIELDS))
        last = ROWS // BATCH - 1
        waiting = asyncio.ensure_future(take(session, Cursor(0, last)))
        await until(lambda: len(set(ranges.read)) > 1)
        assert not waiting.done()
        gate.set()
        found = await asyncio.wait_for(waiting, PATIENT_S)
        assert isinstance(found, Taken)
        assert found.ints("n") == VALUES[last * BATCH :][:BATCH].tolist()


async def test_workers_that_die_while_they_convert_cost_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others convert what those had."""
    monkeypatch.setattr(supervisor, "Child", Child)
    values = np.arange(3 * WORK_ROWS)[::-1]
    data = parquet(pa.table({"n": values}), row_group_size=WORK_ROWS, compression="none")
    async with feeding(tmp_path, decode=DecodeOptions(workers=2)) as rig:
        rig.store.put("train/0.parquet", data)
        ranges = Ranges(rig, data)
        gate = held_back(ranges, 0)
        session = await opened(rig, batch_size=10 * BATCH)
        assert isinstance(await asyncio.wait_for(take(session, Cursor()), PATIENT_S), Taken)
        rest = asyncio.ensure_future(batches(session, Cursor(0, WORK_ROWS // (10 * BATCH))))
        await until(lambda: len(set(ranges.read)) > 1)
        pids = rig.pool.worker_pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        gate.set()
        await until(lambda: rig.pool._dispatch._schedule.busy_count > 0)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [one for batch in await rest for one in batch.ints("n")] == values[WORK_ROWS:].tolist()
        assert rig.recorder.total(DECODE_RESTARTS) == len(pids) == 2
        assert rig.recorder.total(PIPELINE_MADE) == 1


async def test_a_closed_session_leaves_nothing_half_done(tmp_path: Path) -> None:
    """A daemon that ends while a table grows waits for nothing."""
    async with growing(tmp_path) as (rig, ranges):
        held_back(ranges, 0)
        session = await opened(rig, runs=True)
        await run_of(session, Cursor(0, 0), FIRST)
        await rig.close(session)
