"""Batches that are little work are made several at a time: the same batches, failures and ends as one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from feedd.batching.plain_batches import slots_for_groups
from feedd.catalog.stages import PipelineOptions
from feedd.errors import BadSample
from feedd.metrics import DECODE_SAMPLES, PIPELINE_EPOCHS
from feedd.values import BatchReady, Cursor, EpochEnd
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.leases import Lease
from feedd_client.session import Position, Stream
from tests.budget import later
from tests.fakes.feeding import batches, feeding, prefetch_of
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.sessions.feed_session import Session
    from feedd_client.session import Session as Granted
    from tests.fakes.feeding import GatedStore

FIELDS = (("x", "tensor:uint8:4"), ("y", '{"decode": "tokens", "dtype": "uint16", "count": 2, "from": ["y"]}'))
COUNTS = (5, 12, 7, 11, 9, 3)


def store(into: GatedStore, *bad: int) -> None:
    """Store shards whose samples hold their number twice; those in ``bad`` hold a byte too few."""
    for shard, count in enumerate(COUNTS):
        numbers = [shard * 16 + n for n in range(count)]
        into.shard(
            shard,
            [{"x": bytes([n] * (3 if n in bad else 4)), "y": bytes([n, 0, n, 1])} for n in numbers],
        )


def values(batch: BatchReady, data: bytes) -> list[bytes]:
    """Return what the fields hold, without what lies between them."""
    return [data[region.values_at : region.values_at + region.values_bytes] for region in batch.regions]


async def together(session: Session, steps: list[int], epoch: int = 0) -> list[tuple[BatchReady, bytes] | EpochEnd]:
    """Have the first of several steps made at once; return batches with their bytes."""
    found: list[tuple[BatchReady, bytes] | EpochEnd] = []
    for made in await session.produce([Cursor(epoch, step) for step in steps]):
        if isinstance(made, EpochEnd):
            found.append(made)
        else:
            found.append((made.batch, bytes(session.slots.view(made.slot)[: made.batch.size_bytes])))
            session.release(made.slot)
    return found


async def all_of(
    session: Session, steps: int, batches_per_call: int = 4
) -> tuple[list[tuple[BatchReady, bytes] | EpochEnd], list[int]]:
    """Make as many steps, up to so many at once; return them, and how many were made each time."""
    found: list[tuple[BatchReady, bytes] | EpochEnd] = []
    counts = []
    while len(found) < steps:
        made = await together(session, list(range(len(found), len(found) + batches_per_call)))
        counts.append(len(made))
        found += made
    return found, counts


async def test_they_are_as_if_made_alone(tmp_path: Path) -> None:
    """Rows, bytes, cursors and the end of the epoch are the same; batches of several windows among them."""
    async with feeding(tmp_path, options=PipelineOptions(slots_max=12)) as rig:
        store(rig.store)
        alone = await batches(await rig.open(fields=FIELDS, shuffle=True, prefetch_batches=12))
        session = await rig.open(fields=FIELDS, shuffle=True, prefetch_batches=12)
        assert session.info.batches_per_call == 4
        steps = len(alone)
        found, counts = await all_of(session, steps + 2)
        assert 1 <= min(counts) < max(counts) == 4  # those of one window
        assert found[steps:] == [EpochEnd(0, steps)] * (len(found) - steps)
        for one, other in zip(found, alone, strict=False):
            assert not isinstance(one, EpochEnd)
            assert one[0] == other.ready
            assert values(one[0], one[1]) == values(one[0], other.data)


@pytest.mark.parametrize("behind", [1, 2])
async def test_a_step_asked_for_behind_an_end_is_left(tmp_path: Path, behind: int) -> None:
    """What is returned is, one by one, of the first jobs: a batch must not take the place of the end before it."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await rig.open(fields=FIELDS, prefetch_batches=16)
        steps = len(await batches(await rig.open(fields=FIELDS, prefetch_batches=16)))
        wanted = [steps - behind, steps, steps + 1, steps - 3 + behind, steps - 4]
        found = await together(session, wanted)
        assert found[1:] == [EpochEnd(0, steps)] * 2
        assert isinstance(found[0], tuple)
        assert found[0][0].cursor.step == steps - behind
        found = await together(session, wanted[1:])
        assert found == [EpochEnd(0, steps)] * 2


@pytest.mark.parametrize("batches_per_call", [1, 4])
async def test_an_epoch_read_again_is_noticed(tmp_path: Path, batches_per_call: int) -> None:
    """Whoever reads it from the start once more counts as another stream, however many batches are made at a time."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        session = await rig.open(fields=FIELDS, prefetch_batches=16)
        steps = len(await batches(await rig.open(fields=FIELDS, prefetch_batches=16)))
        before = rig.recorder.total(PIPELINE_EPOCHS)
        for times in (1, 2):
            at = 0
            while at <= steps:
                at += len(await together(session, list(range(at, at + batches_per_call))))
            assert rig.recorder.total(PIPELINE_EPOCHS) - before == times


async def test_what_is_asked_for_again_is_no_other_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of another window, and those that failed together, come again: nothing is read ahead anew for them."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 34)
        session = await rig.open(fields=FIELDS, prefetch_batches=16)
        entered: list[Cursor] = []
        monkeypatch.setattr(session._parts.prefetch_driver, "enter", entered.append)
        asked_again = 0
        step = 0
        while step < 8:
            steps = list(range(step, step + 4))
            try:
                made = len(await together(session, steps))
            except BadSample:
                made = 0
                with pytest.raises(BadSample):
                    await all_alone(session, steps)
                break
            asked_again += made < len(steps)
            step += made
        assert made == 0, "nothing failed"
        assert asked_again, "all were of one window"
        assert not entered


async def all_alone(session: Session, steps: list[int]) -> None:
    """Make each step by itself."""
    for step in steps:
        await together(session, [step])


async def test_those_made_ahead_are_as_if_made_alone(tmp_path: Path) -> None:
    """Behind an epoch's end the first of the next are made at once, decoded once, and handed over together."""
    async with feeding(tmp_path, options=PipelineOptions(slots_max=12)) as rig:
        store(rig.store)
        alone = await batches(await rig.open(fields=FIELDS, batch_size=2, shuffle=True, prefetch_batches=12), Cursor(1))
        session = await rig.open(fields=FIELDS, batch_size=2, shuffle=True, prefetch_batches=12)
        await batches(session)
        ahead = prefetch_of(session)
        await until(lambda: len(ahead._early_slots) == 4 and all(early.task.done() for early in ahead._early_slots))
        before = rig.recorder.total(DECODE_SAMPLES)
        made = await together(session, list(range(6)), epoch=1)
        assert len(made) == 4  # the others are asked for again
        assert rig.recorder.total(DECODE_SAMPLES) == before
        for one, other in zip(made, alone, strict=False):
            assert not isinstance(one, EpochEnd)
            assert one[0] == other.ready
            assert values(one[0], one[1]) == values(one[0], other.data)


async def test_a_bad_sample_among_those_made_ahead_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    """None of its pack is handed over then; it is charged to its step once."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 1)
        session = await rig.open(fields=FIELDS, bad_samples_max=1, prefetch_batches=16)
        ahead = prefetch_of(session)
        for epoch in range(2):
            made = await batches(session, Cursor(epoch))
            assert made[0].ready.bad_samples == 1
            assert sum(batch.ready.bad_samples for batch in made) == 1
            await until(lambda: not ahead._early_slots)


async def test_small_batches_have_slots_for_many_at_once(tmp_path: Path) -> None:
    """Whoever asks for no number of slots has so many that a third are made at once; each has its own samples."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        alone = await batches(await rig.open(fields=FIELDS, batch_size=2, shuffle=True, prefetch_batches=0))
        session = await rig.open(fields=FIELDS, batch_size=2, shuffle=True, prefetch_batches=0)
        assert (session.slots.slot_count, session.info.batches_per_call) == (64, 22)
        found, counts = await all_of(session, len(alone), 22)
        assert 8 < max(counts) <= 22
        assert found[len(alone) :] == [EpochEnd(0, len(alone))] * (len(found) - len(alone))
        for one, other in zip(found, alone, strict=False):
            assert not isinstance(one, EpochEnd)
            assert one[0] == other.ready
            assert values(one[0], one[1]) == values(one[0], other.data)


@pytest.mark.parametrize("slots", [2, 5, 16, 33, 64, *map(later, (4, 6, 7, 8, 12, 20, 32, 48, 63))])
async def test_as_many_are_made_at_once_as_a_client_returns(tmp_path: Path, slots: int) -> None:
    """Of a client that returns one more, that one would be made in a group of its own; of few slots none wait."""
    sent: list[pb.StreamRequest] = []
    granted = SimpleNamespace(
        id="", received={}, mapping=object(), slot_count=slots, pid=0, fresh=True, collect=list, refresh=lambda *_: None
    )
    granted.run_batches = 1
    granted.endpoint = SimpleNamespace(headers=(), stub=SimpleNamespace(Stream=lambda requests, **_: requests))
    stream = Stream(cast("Granted", granted), Position(0, 0), 1)
    requests = cast("Iterator[pb.StreamRequest]", stream._call)
    sent.append(next(requests))
    for slot in range(slots):
        granted.received[slot] = 1
        stream.give_back(Lease(np.zeros(0, np.uint8), pb.Batch(), slot, 1))
    stream._requests.put(None)
    sent += requests
    returned = sent[1].credits
    assert {one.credits for one in sent[1:]} == {returned}
    async with feeding(tmp_path, options=PipelineOptions(slots_max=slots)) as rig:
        store(rig.store)
        session = await rig.open(fields=FIELDS, batch_size=2, prefetch_batches=slots)
        assert session.slots.slot_count == slots
        assert session.info.batches_per_call == returned


@pytest.mark.parametrize("asked", [1, 5, 16, 40, *map(later, (2, 3, 4, 15, 17))])
async def test_few_slots_are_no_cliff(tmp_path: Path, asked: int) -> None:
    """Whoever asks for few slots for small batches of numbers gets as many as it takes to make several at once."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        alone = await batches(await rig.open(fields=FIELDS, batch_size=2, shuffle=True, keys=True))
        session = await rig.open(fields=FIELDS, batch_size=2, shuffle=True, prefetch_batches=asked)
        assert session.slots.slot_count == max(asked, 16)
        assert session.info.batches_per_call >= 6
        assert [batch.ready.rows for batch in await batches(session)] == [batch.ready.rows for batch in alone]


@pytest.mark.parametrize(
    ("slot_bytes", "slots"), [(1, 16), (64 << 10, 16), (256 << 10, 16), (1 << 20, 4), (8 << 20, 2)]
)
def test_slots_that_nobody_asked_for_are_bounded(slot_bytes: int, slots: int) -> None:
    """They take 4 MiB at most; larger batches have as many slots as were asked for."""
    assert slots_for_groups(2, slot_bytes) == slots
    assert slots_for_groups(20, slot_bytes) == 20


@pytest.mark.parametrize(
    "changes",
    [{"fields": (("x", "bytes"),)}, {"keys": True}, {"share": "group"}, {"filters": ('{"field":"x","min":1}',)}],
)
async def test_others_have_the_slots_they_asked_for(tmp_path: Path, changes: dict[str, object]) -> None:
    """Batches that are made one by one anyway gain nothing by more slots."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        asked: dict[str, object] = {"fields": FIELDS, "prefetch_batches": 3, **changes}
        assert (await rig.open(**asked)).slots.slot_count == 3


async def test_bad_samples_are_their_own_batchs(tmp_path: Path) -> None:
    """What is bad is dropped from its batch only, and charged to its step."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 1, 34, 48)
        alone = await batches(await rig.open(fields=FIELDS, bad_samples_max=3, prefetch_batches=16))
        session = await rig.open(fields=FIELDS, bad_samples_max=3, prefetch_batches=16)
        found, _ = await all_of(session, len(alone))
        assert [one[0] for one in found if not isinstance(one, EpochEnd)] == [one.ready for one in alone]
        assert sum(one.ready.bad_samples for one in alone) == 3
        for one, other in zip(found, alone, strict=False):
            assert not isinstance(one, EpochEnd)
            assert values(one[0], one[1]) == values(one[0], other.data)


async def test_beyond_the_budget_all_fail(tmp_path: Path) -> None:
    """A sample that the budget does not cover is named, whichever of the batches it is in."""
    async with feeding(tmp_path) as rig:
        store(rig.store, 34)
        session = await rig.open(fields=FIELDS, prefetch_batches=16)
        with pytest.raises(BadSample, match=r"sample '02002', field 'x': expected 4 bytes"):
            await together(session, [4, 5, 6, 7])


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": (("x", "bytes"),)},
        {"fields": FIELDS, "keys": True},
        {"fields": FIELDS, "share": "group"},
    ],
)
async def test_what_is_made_one_by_one(tmp_path: Path, changes: dict[str, object]) -> None:
    """Fields that take decoding, keys and shared batches: nothing is gained by making several."""
    async with feeding(tmp_path) as rig:
        store(rig.store)
        assert (await rig.open(**({"prefetch_batches": 16} | changes))).info.batches_per_call == 1
