"""Runs of batches in one slot hold the same batches as slots of one batch each, and fail where those do."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.stages import PipelineOptions
from feedd.errors import BadSample, ObjectChanged
from feedd.flow.runs import first_runs, run_lengths
from feedd.metrics import DECODE_SAMPLES, PIPELINE_EPOCHS
from feedd.sessions.own_batches import OwnBatches
from feedd.sessions.slot_counts import slots_for_runs
from feedd.values import BatchReady, Cursor, EpochEnd, Produced
from feedd.workers.pool import DecodePool
from tests.budget import later
from tests.fakes.feeding import batches, feeding, prefetch_of, rank
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from feedd.sessions.session import Session
    from feedd.workers.work import GatherTask
    from tests.fakes.feeding import GatedStore

FIELDS = (("rows", '{"decode": "tensor", "dtype": "uint8", "shape": [4], "from": ["data"]}'),)
COUNTS = (5, 12, 7, 11, 9, 3)
TARS = (("x", "tensor:uint8:4"), ("y", '{"decode": "tokens", "dtype": "uint16", "count": 2, "from": ["y"]}'))


def _arrays(into: GatedStore) -> None:
    """Store arrays whose rows hold the number of their shard and their own."""
    for shard, count in enumerate(COUNTS):
        _safetensors(into, shard, np.array([[shard, n, 255 - n, 7] for n in range(count)], np.uint8), "U8")


def _safetensors(into: GatedStore, shard: int, rows: NDArray[Any], dtype: str) -> None:
    told = {"data": {"dtype": dtype, "shape": rows.shape, "data_offsets": (0, rows.nbytes)}}
    head = json.dumps(told).encode()
    into.put(f"train/{shard:02d}.safetensors", len(head).to_bytes(8, "little") + head + rows.tobytes())


def _tars(into: GatedStore, *bad: int) -> None:
    for shard, count in enumerate(COUNTS):
        numbers = [shard * 16 + n for n in range(count)]
        into.shard(shard, [{"x": bytes([n] * (3 if n in bad else 4)), "y": bytes([n, 0, n, 1])} for n in numbers])


def _listed(session: Session, made: Produced) -> list[tuple[BatchReady, list[bytes]]]:
    """Return each batch of a slot with the bytes of its fields."""
    view, info = session.slots.view(made.slot), session.info
    first = made.batch
    alike = [(first, number) for number in range(1 + made.alike)]
    every = [*alike, *((one, 1 + made.alike + number) for number, one in enumerate(made.more))]
    found = []
    for one, place in every:
        data = view[place * info.batch_bytes :]
        found.append((one, [bytes(data[at.values_at : at.values_at + at.values_bytes]) for at in one.regions]))
    return found


async def _runs(
    session: Session, lengths: list[int], at: Cursor | None = None, stride: int = 1
) -> tuple[list[Any], Exception | None]:
    """Make an epoch run by run; return its batches, how often some were alike, and what ended it before its end."""
    here, found = at or Cursor(), []
    counts = iter(lengths)
    while isinstance(made := await session.produce(here, next(counts)), Produced):
        found += _listed(session, made)
        session.release(made.slot)
        if made.failure is not None:
            return found, made.failure
        here = Cursor(here.epoch, here.step + made.batch_count * stride, made.batch.cursor.anchors)
    assert isinstance(made, EpochEnd)
    assert here.step - stride < made.steps <= here.step
    return found, None


def _same(found: list[Any], alone: list[Any]) -> None:
    assert len(found) == len(alone)
    for (ready, fields), other in zip(found, alone, strict=True):
        theirs = [other.data[at.values_at : at.values_at + at.values_bytes] for at in other.ready.regions]
        assert (ready.rows, ready.regions, ready.size_bytes) == (
            other.ready.rows,
            other.ready.regions,
            other.ready.size_bytes,
        )
        assert fields == theirs


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lengths", [[1, 2, 4, 8] + [8] * 40, later([3] * 40), later([64] * 5)])
async def test_they_hold_the_same_batches(tmp_path: Path, ranks: int, shuffle: bool, lengths: list[int]) -> None:
    """Of several windows, whose last batches are short or lie in two windows, and for each of several ranks."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        for number in range(ranks):
            asked = {"fields": FIELDS, "shuffle": shuffle, "batch_size": 3, "topology": rank(number, ranks)}
            alone = await batches(await rig.open(**asked))
            session = await rig.open(**asked, runs=True)
            assert session.info.run_batches >= max(lengths)
            found, failure = await _runs(session, lengths)
            assert failure is None
            _same(found, alone)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("changes", [{}, later({"topology": rank(1, 2)}), {"steps": 17}])
async def test_each_of_several_consumers_has_its_own_steps(
    tmp_path: Path, shuffle: bool, changes: dict[str, Any]
) -> None:
    """The runs of a DataLoader worker have every other step, also those that are made in advance."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        for index in range(2):
            asked = {"fields": FIELDS, "shuffle": shuffle, "batch_size": 2, "consumer_count": 2} | changes
            asked |= {"consumer_index": index, "window_shards": 6}
            session = await rig.open(**asked, runs=True)
            assert session.info.run_batches > 1
            longest = 0
            for epoch in range(2):
                alone = await batches(await rig.open(**asked), Cursor(epoch, index), stride=2)
                found, failure = await _runs(session, [1, 3, *[8] * 9], Cursor(epoch, index), 2)
                assert failure is None
                _same(found, alone)
                longest = max(longest, len(found))
            assert longest > 4


async def test_a_consumers_next_epoch_is_made_in_advance(tmp_path: Path) -> None:
    """The first run of its second epoch is copied once, and begins at its own first step."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked: dict[str, Any] = {"fields": FIELDS, "shuffle": True, "batch_size": 1, "window_shards": 6}
        asked |= {"consumer_count": 2, "consumer_index": 1}
        expected = await batches(await rig.open(**asked), Cursor(1, 1), stride=2)
        session = await rig.open(**asked, runs=True)
        await _runs(session, [64] * 4, Cursor(0, 1), 2)
        await until(partial(_has_made, session, 1))
        copied = rig.recorder.total(DECODE_SAMPLES)
        made = await session.produce(Cursor(1, 1), 16)
        assert isinstance(made, Produced)
        assert (made.batch_count, rig.recorder.total(DECODE_SAMPLES)) == (16, copied)
        _same(_listed(session, made), expected[:16])
        session.release(made.slot)


@pytest.mark.parametrize("count", [1, 4])
async def test_an_epoch_that_is_read_again_is_noticed(tmp_path: Path, count: int) -> None:
    """A client that reads it from the start once more counts as another stream, however long the runs are."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        session = await rig.open(fields=FIELDS, batch_size=2, runs=True)
        before = rig.recorder.total(PIPELINE_EPOCHS)
        for times in (1, 2):
            await _runs(session, [count] * 99)
            assert rig.recorder.total(PIPELINE_EPOCHS) - before == times


async def test_a_bad_sample_in_advance_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    """No batch of its run is handed over before; the sample is charged to its step once in each epoch."""
    async with feeding(tmp_path) as rig:
        _tars(rig.store, 18)
        session = await rig.open(fields=TARS, batch_size=3, bad_samples_max=1, runs=True)
        ahead = prefetch_of(session)
        for epoch in range(2):
            found, failure = await _runs(session, [16] * 9, Cursor(epoch))
            assert failure is None
            assert sum(one.bad_samples for one, _ in found) == 1
            await until(lambda: not any(not early.task.done() for early in ahead._early_slots))


@pytest.mark.parametrize("changes", [{"keys": True}, {"share": "group"}])
async def test_others_have_the_slots_they_asked_for(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Batches that are made one by one gain nothing by more slots."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        session = await rig.open(fields=FIELDS, batch_size=2, prefetch_batches=3, runs=True, **changes)
        assert session.slots.slot_count == 3


def _has_made(session: Session, count: int) -> bool:
    """Whether so many runs of the next epoch are made."""
    own = session._parts.batches
    assert isinstance(own, OwnBatches)
    early = own.prefetch._early_slots
    return len(early) == count and all(one.task.done() for one in early)


@pytest.mark.parametrize(
    "changes",
    [
        {"uneven": "pad", "steps": 30},
        {"uneven": "pad", "steps": 5},
        {"partitions": 2},
        {"partitions": 2, "topology": rank(1, 2)},
        {"partitions": 2, "uneven": "pad", "steps": 25},
    ],
)
async def test_they_are_cut_and_padded_alike(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Steps that are given, samples that come again, and partitions that take turns."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked = {"fields": FIELDS, "shuffle": True, "batch_size": 2, "window_shards": 3} | changes
        alone = await batches(await rig.open(**asked))
        if "topology" in changes:  # the other rank sorts its windows, which ranks share
            await batches(await rig.open(**asked | {"topology": rank(0, 2)}))
        found, failure = await _runs(await rig.open(**asked, runs=True), [1, 4, *[16] * 20])
        assert failure is None
        _same(found, alone)
        assert [one.again for one, _ in found] == [one.ready.again for one in alone]


@pytest.mark.parametrize("runs", [False, True])
async def test_shards_too_many_for_a_request_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """A request numbers its files in two bytes."""
    file_counts = []
    gather = DecodePool.gather

    async def noted(pool: DecodePool, task: GatherTask) -> NDArray[np.int64]:
        file_counts.append(len(task.files))
        return await gather(pool, task)

    monkeypatch.setattr(DecodePool, "gather", noted)
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked = {"fields": FIELDS, "batch_size": 3}
        alone = await batches(await rig.open(**asked))
        assert max(file_counts) > 1
        file_counts.clear()
        monkeypatch.setattr("feedd.batching.plain_batches.FILES_MAX", 1)
        session = await rig.open(**asked, runs=runs)
        if runs:
            found, failure = await _runs(session, [8] * 40)
            assert failure is None
            _same(found, alone)
        else:
            assert [one.data for one in await batches(session)] == [one.data for one in alone]
        assert set(file_counts) <= {1}


async def test_batches_of_many_rows(tmp_path: Path) -> None:
    """A batch is cut into requests, as runs are."""
    rows = np.arange(3 * 20_000, dtype=np.uint32).reshape(3, -1)
    async with feeding(tmp_path) as rig:
        for shard in range(3):
            _safetensors(rig.store, shard, rows[shard], "U32")
        asked = {"fields": (("n", '{"decode": "int", "from": ["data"]}'),), "batch_size": 25_000}
        for runs in (False, True):
            found = await batches(await rig.open(**asked, runs=runs))
            assert [row for batch in found for row in batch.ints("n")] == rows.reshape(-1).tolist()


async def test_numbers_that_do_not_fit_are_bad_samples(tmp_path: Path) -> None:
    """Workers copy whole columns, and say which batches have a value that cannot be copied."""
    async with feeding(tmp_path) as rig:
        for shard, count in enumerate(COUNTS):
            rows = np.arange(count, dtype=np.uint64) + np.uint64(100 * shard)
            if shard == 2:
                rows[4] = np.uint64(1 << 63)
            _safetensors(rig.store, shard, rows, "U64")
        asked = {"fields": (("n", '{"decode": "int", "from": ["data"]}'),), "batch_size": 2, "bad_samples_max": 1}
        alone = await batches(await rig.open(**asked))
        found, failure = await _runs(await rig.open(**asked, runs=True), [64] * 3)
        assert failure is None
        _same(found, alone)
        assert sum(one.bad_samples for one, _ in found) == 1
        _, failure = await _runs(await rig.open(**asked | {"bad_samples_max": 0}, runs=True), [64] * 3)
        assert isinstance(failure, BadSample)


async def test_the_next_epochs_first_run_is_made_in_advance(tmp_path: Path) -> None:
    """Who begins the epoch gets it; who begins it otherwise gets as many batches as asked for."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked: dict[str, Any] = {"fields": FIELDS, "shuffle": True, "batch_size": 2, "window_shards": 6}
        expected = await batches(await rig.open(**asked), Cursor(1))
        for first, count in ((0, 16), (0, 1), (1, 1), (2, 3)):
            session = await rig.open(**asked, runs=True)
            await _runs(session, [64] * 4)
            await until(partial(_has_made, session, 1))
            copied = rig.recorder.total(DECODE_SAMPLES)
            made = await session.produce(Cursor(1, first), count)
            assert isinstance(made, Produced)
            assert made.batch_count == count
            _same(_listed(session, made), expected[first : first + count])
            in_advance = (first, count) == (0, 16)
            assert (rig.recorder.total(DECODE_SAMPLES) == copied) == in_advance
            if in_advance:
                assert (made.alike, made.more) == (count - 1, ()), "a run made in advance is planned as one"
            session.release(made.slot)
            await rig.close(session)


async def test_a_run_made_in_advance_charges_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget of bad samples is that of the epoch that the trainer is in."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        session = await rig.open(fields=FIELDS, shuffle=True, batch_size=2, window_shards=6, runs=True)
        own = session._parts.batches
        assert isinstance(own, OwnBatches)
        handler, charged = own._decoder.assembler._bad_sample_handler, []
        monkeypatch.setattr(handler, "charge_none", lambda first, *_: charged.append(first.epoch))
        await _runs(session, [64] * 4)
        await until(partial(_has_made, session, 1))
        assert charged
        assert set(charged) == {0}


async def test_a_run_that_crosses_windows_is_whole_in_the_next_epoch(tmp_path: Path) -> None:
    """It is not made in advance, because its second window may not be here; when requested, it has all its batches."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked: dict[str, Any] = {"fields": FIELDS, "shuffle": True, "batch_size": 2, "window_shards": 2}
        expected = await batches(await rig.open(**asked), Cursor(1))
        session = await rig.open(**asked, runs=True)
        await _runs(session, [64] * 4)
        await until(partial(_has_made, session, 0))
        made = await session.produce(Cursor(1, 0), 16)
        assert isinstance(made, Produced)
        assert made.batch_count == 16
        _same(_listed(session, made), expected[:16])
        session.release(made.slot)


async def test_an_object_that_changed_is_listed_again(tmp_path: Path) -> None:
    """Also where batches before it in the run could be made."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        gate = rig.store.gates["train/05.safetensors"] = asyncio.Event()
        asked: dict[str, Any] = {"fields": FIELDS, "batch_size": 2, "window_shards": 1, "runs": True}
        session = await rig.open(**asked)
        _safetensors(rig.store, 5, np.zeros((9, 4), np.uint8), "U8")
        gate.set()
        found, failure = await _runs(session, [64] * 3)
        assert isinstance(failure, ObjectChanged)
        assert len(found) == sum(COUNTS[:5]) // 2
        again, failure = await _runs(await rig.open(**asked), [64] * 3)
        assert failure is None
        assert len(again) == (sum(COUNTS[:5]) + 9 + 1) // 2


async def test_most_of_a_window_is_told_as_one_batch(tmp_path: Path) -> None:
    """Batches that differ in their steps only are not told one by one."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        session = await rig.open(fields=FIELDS, batch_size=2, window_shards=6, runs=True, shuffle=True)
        await session.produce(Cursor(1), 1)  # sorts the window
        made = await session.produce(Cursor(1, 1), 16)
        assert isinstance(made, Produced)
        assert (made.alike, made.more) == (15, ())


async def test_a_stream_begins_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Any step may be the first of a run, with the anchors of a batch before it."""
    async with feeding(tmp_path) as rig:
        _arrays(rig.store)
        asked = {"fields": FIELDS, "shuffle": True, "batch_size": 2}
        alone = await batches(await rig.open(**asked))
        for step in (1, 5, len(alone) - 1):
            session = await rig.open(**asked, runs=True)
            here = Cursor(0, step, alone[step - 1].ready.cursor.anchors)
            found, _ = await _runs(session, [8] * 20, here)
            _same(found, alone[step:])


@pytest.mark.parametrize("budget", [0, 1, 2])
@pytest.mark.parametrize("lengths", [[1] * 40, later([5] * 40), [64] * 4])
async def test_they_fail_where_single_batches_do(tmp_path: Path, budget: int, lengths: list[int]) -> None:
    """Batches before the bad one come; within the budget the bad samples are left out."""
    async with feeding(tmp_path) as rig:
        _tars(rig.store, 18, 35)
        asked = {"fields": TARS, "batch_size": 3, "bad_samples_max": budget}
        alone: list[Any] = []
        session = await rig.open(**asked)
        try:
            here = Cursor()
            while not isinstance(made := await session.produce(here), EpochEnd):
                data = bytes(session.slots.view(made.slot)[: made.batch.size_bytes])
                alone.append(type("One", (), {"ready": made.batch, "data": data}))
                session.release(made.slot)
                here = Cursor(0, here.step + 1, made.batch.cursor.anchors)
            expected = None
        except BadSample as error:
            expected = error
        session = await rig.open(**asked, runs=True)
        assert session.info.run_batches > 1
        found: list[Any] = []
        try:
            found, failure = await _runs(session, lengths)
        except BadSample as error:
            assert lengths[0] == 1
            failure = error
        assert (failure is None, expected is None) == (budget == 2, budget == 2)
        if failure is not None:
            assert isinstance(failure, BadSample)
            assert str(failure) == str(expected)
        if found or failure is None:
            _same(found, alone)
            assert sum(one.bad_samples for one, _ in found) == sum(one.ready.bad_samples for one in alone)


async def test_who_gets_no_runs(tmp_path: Path) -> None:
    """Groups, keys, large batches, fields that are decoded, and clients that do not ask."""
    async with feeding(tmp_path, options=PipelineOptions(slots_max=64)) as rig:
        _arrays(rig.store)
        assert (await rig.open(fields=FIELDS, batch_size=2, runs=True)).info.run_batches == 256
        for changes in (
            {"runs": False},
            {"keys": True},
            {"share": "group"},
            {"fields": (("rows", '{"decode": "bytes", "from": ["data"]}'),)},
            {"batch_size": 1 << 20, "prefetch_batches": 2},
        ):
            asked = {"fields": FIELDS, "batch_size": 2, "runs": True} | changes
            info = (await rig.open(**asked)).info
            assert (info.run_batches, info.batch_bytes) == (1, 0), changes


@given(st.integers(1, 1 << 24), st.integers(1, 1024), st.booleans())
def test_runs_take_no_more_memory_than_slots_of_single_batches(batch_bytes: int, slots: int, join: bool) -> None:
    """But for small batches, whose memory is negligible; and there are enough slots to take turns and look ahead."""
    run, count = slots_for_runs(slots, batch_bytes, join=join)
    assert run * count * batch_bytes <= max(slots * batch_bytes, 8 << 20)
    if run == 1:
        assert count == slots
    else:
        assert 4 <= run <= 256
        assert (4 if join else 3) <= count <= 8


def test_the_first_runs_are_short() -> None:
    """The first batch waits for no other; then runs grow."""
    lengths = run_lengths(50)
    assert [next(lengths) for _ in range(6)] == [1, 4, 16, 50, 50, 50]


def test_the_first_runs_of_a_later_epoch_are_longer() -> None:
    """They are made in advance, so the first batch waits for none of them."""
    lengths = run_lengths(50, later_epoch=True)
    assert [next(lengths) for _ in range(3)] == [16, 50, 50]
    assert first_runs(50, 3) == [(0, 16), (16, 50), (66, 50)]
    assert first_runs(4, 3) == [(0, 4), (4, 4), (8, 4)]
    assert first_runs(1, 2) == [(0, 1), (1, 1)]
