"""Opening: what is looked at, what is refused, and what a failed open leaves: nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd import metrics
from feedd.catalog.stages import PipelineOptions
from feedd.errors import BadRecipe, BadRequest, FeeddError, NotFound, ObjectChanged, StoreUnavailable
from feedd.values import Topology
from tests.budget import PATIENT_S
from tests.fakes.feeding import ROOT, batches, feeding
from tests.fakes.fetchers import until
from tests.fakes.files import npy
from tests.fakes.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from feedd.values import ObjectRef

NOBODY = Topology(9, 8, 1, 0, 9, 8)


async def test_a_failed_open_leaves_nothing(tmp_path: Path) -> None:
    """Unknown fields, shards that are no tar, and arenas without room are errors that hold no memory and no wish."""
    async with feeding(tmp_path, options=PipelineOptions(arena_bytes=1 << 20)) as rig:
        rig.store.numbers(4, 4)
        with pytest.raises(BadRecipe, match="expected one of cls, got jpg"):
            await rig.open(fields=(("jpg", "int"),))
        with pytest.raises(FeeddError, match="an arena of at most 1MiB"):
            await rig.open(batch_size=1 << 20)
        with pytest.raises(BadRequest, match="sharding"):
            await rig.open(sharding="rows")
        with pytest.raises(NotFound):
            await rig.open(urls=("s3://memory/nothing/",))


async def test_tables_are_asked_for_while_objects_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One listing, which waits for nobody; an open that fails for its table holds nothing of it."""
    listed = asyncio.Event()
    list_before, head_before = MemoryStore.list, MemoryStore.head

    def listing(self: MemoryStore, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        assert not listed.is_set(), "listed once"
        listed.set()
        assert rig.recorder.total(metrics.PIPELINE_LISTING) == 1
        return list_before(self, prefix, start_after)

    async def head(self: MemoryStore, key: str) -> ObjectRef:
        await listed.wait()
        return await head_before(self, key)

    async with feeding(tmp_path) as rig:
        for name in ("a", "b"):
            rig.store.put(f"train/{name}.jpg", name.encode())
        rig.store.put("train/labels.csv", b"file_name,value\na.jpg,4\nb.jpg,5\n")
        monkeypatch.setattr(MemoryStore, "list", listing)
        monkeypatch.setattr(MemoryStore, "head", head)
        fields = (("jpg", "bytes"), ("value", "table:labels.csv"))
        session = await rig.open(fields=fields, batch_size=2)
        assert sorted((await batches(session))[0].ints("value")) == [4, 5]
        assert rig.recorder.total(metrics.PIPELINE_LISTING) == 0
        await rig.open(fields=fields, batch_size=2)  # the listing is fresh
        listed.clear()
        with pytest.raises(NotFound):
            await rig.open(urls=("s3://memory/trai",), fields=(("jpg", "bytes"), ("value", "table:nothing.csv")))


async def test_a_table_is_read_while_objects_are_listed_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing does not come before the table has been read; who opens again does not read it again."""
    async with asyncio.timeout(PATIENT_S), feeding(tmp_path) as rig:
        for name in ("a", "b"):
            rig.store.put(f"train/{name}.jpg", name.encode())
        rig.store.put("train/labels.csv", b"file_name,value\na.jpg,4\nb.jpg,5\n")
        catalog = rig.pipeline.catalog
        mixed_before = catalog.mixed

        async def mixed(*args: Any) -> Any:
            await until(lambda: "train/labels.csv" in rig.store.reads)
            return await mixed_before(*args)

        monkeypatch.setattr(catalog, "mixed", mixed)
        fields = (("jpg", "bytes"), ("value", "table:labels.csv"))
        for _ in range(2):
            session = await rig.open(fields=fields, batch_size=2)
            assert sorted((await batches(session))[0].ints("value")) == [4, 5]
        assert rig.store.reads.count("train/labels.csv") == 1


async def test_a_table_that_cannot_be_read_is_said_behind_what_is_wrong_with_the_listing(tmp_path: Path) -> None:
    """Reading it ahead changes no error: of two things that are wrong the listing's is said, and else the table's."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jpg", b"a")
        rig.store.put("train/labels.csv", b"\xff\xfe,,,")
        fields = (("jpg", "bytes"), ("value", "table:labels.csv"))
        with pytest.raises(BadRequest, match=r"labels\.csv"):
            await rig.open(fields=fields)
        with pytest.raises(NotFound, match="nothing"):
            await rig.open(
                urls=(f"{ROOT}/nothing/",), fields=(("jpg", "bytes"), ("value", f"table:{ROOT}/train/labels.csv"))
            )


async def test_a_table_without_an_answer_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was asked for as long as it may be asked: an open does not do that again."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jpg", b"a")
        rig.store.put("train/labels.csv", b"file_name,value\na.jpg,4\n")
        asked: list[str] = []

        async def fetch(ref: ObjectRef, _: memoryview) -> None:
            asked.append(ref.key)
            raise StoreUnavailable("expected an answer, got silence", object=ref.url)

        monkeypatch.setattr(rig.pipeline.stages.sources.fetcher, "fetch", fetch)
        with pytest.raises(StoreUnavailable, match="silence"):
            await rig.open(fields=(("jpg", "bytes"), ("value", "table:labels.csv")))
        assert asked == ["train/labels.csv"]


async def test_a_cancelled_open_leaves_nothing(tmp_path: Path) -> None:
    """An open whose client went away while the first shard arrived holds nothing."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4)
        rig.store.gates["train/00.tar"] = asyncio.Event()
        opening = asyncio.ensure_future(rig.open())
        await until(lambda: rig.store.reads)
        opening.cancel()
        await asyncio.wait((opening,))
        assert opening.cancelled()
        assert not rig.cache._disk._prefetcher._running


async def test_a_node_without_shards_knows_the_fields(tmp_path: Path) -> None:
    """Fields nobody named, and those pinned by data, are the same on a node that has no shard."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"cls": b"1", "npy": npy(np.zeros((2, 2), np.float32))}])
        here = await rig.open(fields=())
        there = await rig.open(fields=(), topology=NOBODY)
        assert here.info.specs == there.info.specs
        pinned = await rig.open(fields=(("npy", "npy"),), topology=NOBODY)
        assert (pinned.info.specs[0].dtype, pinned.info.specs[0].ndim) == ("float32", 2)
        assert await batches(there) == []


async def test_empty_shards_tell_nothing_of_the_fields(tmp_path: Path) -> None:
    """Where the first shard is empty the next one is looked at; only where all are, fields must be named."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(0, 0, 3)
        assert [spec.name for spec in (await rig.open(fields=())).info.specs] == ["cls"]
        rig.store.shard(2, [{"npy": npy(np.zeros(3))}])
        session = await rig.open(urls=("s3://memory/train",), fields=(("npy", "npy"),))
        assert session.info.specs[0].dtype == "float64"
        rig.store.delete("train/02.tar")
        with pytest.raises(BadRequest, match="name fields="):
            await rig.open(urls=("s3://memory/trai",), fields=())


async def test_a_first_shard_that_changed_is_listed_anew(tmp_path: Path) -> None:
    """A listing that turns out stale while opening is not used for the next open."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4)
        await rig.pipeline.catalog.listing(("s3://memory/train/",), lambda _: False)
        rig.store.numbers(3)
        with pytest.raises(ObjectChanged):
            await rig.open()
        assert sum(batch.ready.rows for batch in await batches(await rig.open())) == 7


async def test_a_running_run_keeps_its_listing(tmp_path: Path) -> None:
    """A dataset that grew: the run that began before opens again as it was, a new one sees what is new."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4)
        before = await rig.open()
        rig.store.numbers(4, 4, 4)
        for listing in rig.pipeline.catalog._listings.values():
            listing.listed_s -= 3600
        grown = await rig.open()
        assert grown.info.shard_count == 3
        again = await rig.open(expect_fingerprint=before.info.fingerprint)
        assert again.info.shard_count == 2
        assert again._parts.view is before._parts.view
