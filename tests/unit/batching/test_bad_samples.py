"""The failure budget: what is dropped, what is an error, and that neither depends on who finishes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.batching.bad_samples import FailureBudget
from feedd.errors import BadSample
from feedd.recipe.bad_sample_policy import Failure
from feedd.values import Cursor
from tests.fakes.feeding import GatedStore, Taken, batches, feeding, take

if TYPE_CHECKING:
    from pathlib import Path


def _store(store: GatedStore, *bad: int) -> None:
    """Store 6 shards of 2 samples each; those whose number is in ``bad`` are no integers."""
    for shard in range(6):
        numbers = (shard * 100, shard * 100 + 1)
        store.shard(shard, [{"cls": b"broken" if n in bad else str(n).encode()} for n in numbers])


async def test_bad_samples_within_the_budget_are_dropped(tmp_path: Path) -> None:
    """Bad rows leave no gap, tables included, and are counted with their batch; the others keep their order."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200, 201)
        made = await batches(await rig.open(bad_samples_max=3, keys=True))
        assert [batch.ints() for batch in made] == [[0, 100, 101], [300, 301], [400, 401, 500, 501]]
        assert [batch.texts("__key__") for batch in made[:2]] == [[b"00000", b"01000", b"01001"], [b"03000", b"03001"]]
        assert [batch.ready.bad_samples for batch in made] == [1, 2, 0]


async def test_a_batch_of_bad_samples_only_is_empty(tmp_path: Path) -> None:
    """A batch of which nothing is left still has its place among the steps."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 200, 201, 300, 301)
        made = await batches(await rig.open(bad_samples_max=4))
        assert [batch.ints() for batch in made] == [[0, 1, 100, 101], [], [400, 401, 500, 501]]


async def test_beyond_the_budget_is_an_error_that_names_the_sample(tmp_path: Path) -> None:
    """The first sample that the budget does not cover is named by shard, key and field."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200, 201)
        session = await rig.open(bad_samples_max=2)
        with pytest.raises(BadSample, match=r"sample '02001', field 'cls'.*02\.tar.*more bad samples than 2"):
            await batches(session)


async def test_a_batch_made_twice_is_charged_once(tmp_path: Path) -> None:
    """A reconnect or a second pass makes batches again: their bad samples were already counted."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200)
        session = await rig.open(bad_samples_max=2)
        for _ in range(3):
            assert sum(batch.ready.bad_samples for batch in await batches(session)) == 2


async def test_who_finishes_first_does_not_matter(tmp_path: Path) -> None:
    """With several batches in production the error comes at the step where the budget ends, not where one is slow."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200, 400)
        fresh = await rig.open(bad_samples_max=1, prefetch_batches=4)
        late = await take(fresh, Cursor(0, 2))
        early = await take(fresh, Cursor(0, 0))
        assert isinstance(late, Taken)
        assert isinstance(early, Taken)
        assert (early.ints(), late.ints()) == ([0, 100, 101], [401, 500, 501])
        with pytest.raises(BadSample, match="sample '02000'"):
            await take(fresh, Cursor(0, 1))
        with pytest.raises(BadSample, match="sample '02000'"):
            await take(fresh, Cursor(0, 3))


async def test_a_new_epoch_has_a_new_budget(tmp_path: Path) -> None:
    """Bad samples are counted per epoch, whose order puts them into other steps each time."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200)
        session = await rig.open(bad_samples_max=2, shuffle=True)
        for epoch in range(6):
            assert sum(batch.ready.bad_samples for batch in await batches(session, Cursor(epoch))) == 2


@pytest.mark.parametrize("lent", [False, True], ids=["copied", "lent"])
async def test_jobs_in_different_epochs_do_not_reset_each_other(tmp_path: Path, lent: bool) -> None:
    """Jobs that share a decode keep each epoch's budget, however they take turns."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200, 400)
        here, ahead = [await rig.open(bad_samples_max=2, share="a", shared_arena=lent) for _ in range(2)]
        for step in range(2):
            for job, epoch in ((here, 0), (ahead, 1)):
                assert isinstance(await take(job, Cursor(epoch, step)), Taken)
        for job, epoch in ((here, 0), (ahead, 1)):
            with pytest.raises(BadSample, match="more bad samples than 2"):
                await take(job, Cursor(epoch, 2))


@pytest.mark.parametrize("lent", [False, True], ids=["copied", "lent"])
async def test_the_end_of_an_epoch_asks_whoever_decoded_it(tmp_path: Path, lent: bool) -> None:
    """A job that shares a decode learns at the epoch's end, too, that an early step was beyond the budget."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 200, 400)
        job = await rig.open(bad_samples_max=1, share="a", shared_arena=lent)
        for step in (2, 0):
            assert isinstance(await take(job, Cursor(0, step)), Taken)
        for step in (1, 3):
            with pytest.raises(BadSample, match="sample '02000'"):
                await take(job, Cursor(0, step))


def test_a_run_without_bad_samples_takes_back_what_its_steps_had() -> None:
    """Steps that are made again, now all well, free their share of the budget; an epoch without any costs nothing."""
    budget = FailureBudget(1)
    failure = Failure("s3://b/0", "0", "x", "expected a number", 0, 0, 0)
    budget.charge_none(Cursor(0, 0), 100)
    budget.charge(Cursor(0, 3), [failure])
    budget.charge_none(Cursor(0, 2), 4)
    budget.charge(Cursor(0, 9), [failure])
    with pytest.raises(BadSample):
        budget.charge(Cursor(0, 10), [failure])
    with pytest.raises(BadSample):
        budget.charge_none(Cursor(0, 11), 2)
    budget.charge_none(Cursor(1, 11), 2)
