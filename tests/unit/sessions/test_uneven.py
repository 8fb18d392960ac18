"""Equal steps and elastic runs through the daemon's stages: what arrives in slots is what the plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadRequest, ObjectChanged, Unsupported
from feedd.metrics import PIPELINE_LEFT_OUT
from feedd.values import Cursor, Topology
from tests.fakes.feeding import URL, Feeding, batches, feeding, rank

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.session import Session


async def _counted(rig: Feeding, *counts: int) -> None:
    """Store shards of so many samples, and have the daemon know the counts."""
    rig.store.numbers(*counts)
    await batches(await rig.open())


async def _numbers(session: Session, at: Cursor | None = None) -> list[list[int]]:
    return [batch.ints() for batch in await batches(session, at)]


async def test_without_counts_equal_steps_are_refused(tmp_path: Path) -> None:
    """The error says how counts are had, and what goes without; with steps= they are not needed."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(3, 2)
        for uneven in ("drop", "pad", "repeat"):
            with pytest.raises(Unsupported, match="feedd index"):
                await rig.open(uneven=uneven, topology=rank(0, 2))
        with pytest.raises(BadRequest, match="drop, pad, repeat, join, allow, auto"):
            await rig.open(uneven="most")
        session = await rig.open(uneven="repeat", steps=4)
        assert session.info.steps == 4
        assert [len(batch) for batch in await _numbers(session)] == [4, 4, 4, 4]


async def test_auto_drops_where_counts_are_known(tmp_path: Path) -> None:
    """What equalises steps is chosen once for a listing, and said; known steps are said at open."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6, 7)
        before = await rig.open(uneven="auto", topology=rank(0, 2))
        assert (before.info.uneven, before.info.steps) == ("join", None)
        for number in range(2):
            await batches(await rig.open(topology=rank(number, 2)))
        again = await rig.open(uneven="auto", topology=rank(1, 2))
        assert again.info.uneven == "join"  # the other rank was told so
        assert again.info.steps == 2  # of its own: the last one is short
    async with feeding(tmp_path / "counted") as rig:
        rig.store.numbers(5, 6, 7)
        listing = await rig.pipeline.catalog.listing((URL,), lambda _: True)
        listing.add_counts({0: 5, 1: 6, 2: 7}, {}, ())
        session = await rig.open(uneven="auto", topology=rank(1, 2))
        assert (session.info.uneven, session.info.steps) == ("drop", 2)


async def test_dropping_and_padding(tmp_path: Path) -> None:
    """18 samples in batches of 4 for two ranks: two steps each by dropping; three by filling up, with marks."""
    async with feeding(tmp_path) as rig:
        await _counted(rig, 5, 6, 7)
        dropped = [await rig.open(uneven="drop", topology=rank(number, 2)) for number in range(2)]
        assert [session.info.steps for session in dropped] == [2, 2]
        taken = [number for session in dropped for batch in await _numbers(session) for number in batch]
        assert len(taken) == len(set(taken)) == 16
        padded = [await rig.open(uneven="pad", topology=rank(number, 2)) for number in range(2)]
        assert [session.info.steps for session in padded] == [3, 3]
        made = [await batches(session) for session in padded]
        assert [[batch.ready.rows for batch in each] for each in made] == [[4, 4, 4]] * 2
        marked = [
            (number, bool(again))
            for each in made
            for batch in each
            for number, again in zip(batch.ints(), batch.ready.again or bytes(4), strict=True)
        ]
        assert len([number for number, again in marked if not again]) == 18
        assert sorted(number for number, again in marked if not again) == sorted({number for number, _ in marked})
        assert [again for _, again in marked].count(True) == 6


async def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """20 samples in steps of 8: rank 0 would have had 4 more; counted at the end of each epoch, once per rank."""
    async with feeding(tmp_path) as rig:
        await _counted(rig, 5, 6, 9)
        dropped = [await rig.open(uneven="drop", topology=rank(number, 2)) for number in range(2)]
        assert [session.info.left_out for session in dropped] == [4, 0]
        assert rig.recorder.total(PIPELINE_LEFT_OUT) == 0
        taken = [number for session in dropped for batch in await _numbers(session) for number in batch]
        assert rig.recorder.total(PIPELINE_LEFT_OUT) == 20 - len(taken) == 4
        await _numbers(dropped[0], Cursor(1, 1))  # from the middle on: its end is one as well
        assert rig.recorder.total(PIPELINE_LEFT_OUT) == 8
        workers = [await rig.open(uneven="drop", consumer_count=2, consumer_index=index) for index in range(2)]
        assert [session.info.left_out for session in workers] == [0, 0]  # one rank: 5 steps of 4 are all there is
        workers = [await rig.open(uneven="drop", steps=4, consumer_count=2, consumer_index=n) for n in range(2)]
        assert [session.info.left_out for session in workers] == [4, 0]  # the first tells for the rank
        others = [await rig.open(uneven=uneven, topology=rank(0, 2)) for uneven in ("pad", "repeat", "join", "allow")]
        assert [session.info.left_out for session in others] == [0, 0, 0, 0]


async def test_what_is_left_out_may_not_be_known(tmp_path: Path) -> None:
    """With steps= and no counts nobody knows what else there is."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6, 9)
        session = await rig.open(uneven="drop", steps=1, topology=rank(0, 2))
        assert session.info.left_out is None
        await batches(session)
        assert rig.recorder.total(PIPELINE_LEFT_OUT) == 0


async def test_bad_samples_take_their_marks_along(tmp_path: Path) -> None:
    """A dropped sample's mark goes with it: there are as many marks as rows."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(3, 4)
        rig.store.shard(1, [{"cls": b"100"}, {"cls": b"no number"}, {"cls": b"102"}, {"cls": b"103"}])
        for _ in range(2):
            await batches(await rig.open(bad_samples_max=9))
        session = await rig.open(uneven="pad", bad_samples_max=9, topology=rank(1, 2))
        (batch,) = await batches(session)
        assert len(batch.ready.again) == batch.ready.rows == 3


async def test_shares_of_samples(tmp_path: Path) -> None:
    """By samples, two nodes get 9 of 18 each, whatever the shards hold."""
    async with feeding(tmp_path) as rig:
        await _counted(rig, 1, 13, 4)
        seen = []
        for node in range(2):
            session = await rig.open(sharding="sample", topology=Topology(2, node, 1, 0, 2, node))
            numbers = [number for batch in await _numbers(session) for number in batch]
            assert len(numbers) == 9
            assert session.info.assigned_shard_count == 2
            seen += numbers
        assert len(set(seen)) == 18


async def test_another_number_of_nodes_goes_on(tmp_path: Path) -> None:
    """Stopped on one node of two ranks, a run of two partitions goes on on two nodes: same data, nothing lost."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[6] * 8)
        one = [await rig.open(partitions=2, shuffle=True, topology=rank(number, 2)) for number in range(2)]
        seen = [number for session in one for batch in (await _numbers(session))[:3] for number in batch]
        mark = one[0].info.fingerprint
        for node in range(2):
            topology = Topology(2, node, 1, 0, 2, node)
            session = await rig.open(partitions=2, shuffle=True, topology=topology, expect_fingerprint=mark)
            seen += [number for batch in await _numbers(session, Cursor(0, 3)) for number in batch]
        assert len(seen) == len(set(seen)) == 48
        with pytest.raises(ObjectChanged):  # another number of partitions is another order
            await rig.open(shuffle=True, topology=Topology(2, 0, 1, 0, 2, 0), partitions=4, expect_fingerprint=mark)
