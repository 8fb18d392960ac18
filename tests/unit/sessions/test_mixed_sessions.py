"""Sessions over several datasets: every source by its weight, with its own recipe, and what cannot be mixed."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd import metrics
from feedd.dataset.index_file import INDEX_NAME, Row, render
from feedd.errors import BadRecipe, BadRequest, BadSample, ObjectChanged
from feedd.open_spec import SourceSpec
from feedd.values import Cursor, EpochEnd
from tests.fakes.feeding import ROOT, Taken, batches, feeding, rank, take
from tests.fakes.fetchers import until
from tests.fakes.files import npy
from tests.fakes.tars import jpeg, natural_image, tar_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.fakes.feeding import Feeding


def fill(rig: Feeding, folder: str, shards: Sequence[Sequence[Mapping[str, bytes]]], *, counted: bool = True) -> None:
    """Store a dataset, with the index that says how many samples each of its shards holds."""
    rows = []
    for number, samples in enumerate(shards):
        named = [(f"{folder}{number:02d}{ordinal:03d}", fields) for ordinal, fields in enumerate(samples)]
        key = f"{number:02d}.tar"
        ref = rig.store.put(f"{folder}/{key}", tar_bytes(named))
        rows.append(Row(key, ref.size_bytes, ref.etag, len(samples)))
    if counted:
        rig.store.put(f"{folder}/{INDEX_NAME}", render(rows))


def numbered(first: int, *counts: int, extension: str = "cls") -> list[list[dict[str, bytes]]]:
    """Return shards whose samples are numbered from ``first`` on."""
    numbers = itertools.count(first)
    return [[{extension: str(next(numbers)).encode()} for _ in range(count)] for count in counts]


def source(folder: str, weight: float = 1.0, fields: tuple[tuple[str, str], ...] = (("cls", "int"),)) -> SourceSpec:
    """Return a source of one weight."""
    return SourceSpec((f"{ROOT}/{folder}/",), fields, ((0, weight),))


def asked(*sources: SourceSpec, **changes: object) -> dict[str, object]:
    """Return what to open."""
    urls = tuple(url for one in sources for url in one.urls)
    return {"urls": urls, "sources": sources, "mix": "stratified", **changes}


async def test_weights_are_realised(tmp_path: Path) -> None:
    """Two ranks together take three of one and one of the other in every step; nothing twice before all came once."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, *[6] * 8))
        fill(rig, "b", numbered(1000, *[5] * 5))
        wanted = asked(source("a", 0.75), source("b", 0.25), shuffle=True)
        sessions = [await rig.open(**wanted, topology=rank(n, 2)) for n in range(2)]
        taken: list[int] = []
        for epoch in range(3):
            walks = [[batch.ints() for batch in await batches(session, Cursor(epoch))] for session in sessions]
            assert [len(walk) for walk in walks] == [8, 8] == [session.steps(epoch) for session in sessions]
            assert sessions[0].info.steps == 8
            for step in zip(*walks, strict=True):
                mixed = [value for batch in step for value in batch]
                assert sum(value < 1000 for value in mixed) == 6
                taken += mixed
        ones, others = [v for v in taken if v < 1000], [v for v in taken if v >= 1000]
        for epoch in range(3):
            assert sorted(ones[48 * epoch : 48 * (epoch + 1)]) == list(range(48))
        assert sorted(others[:25]) == list(range(1000, 1025))
        assert sessions[0].info.uneven == "allow"
        assert (sessions[0].info.shard_count, sessions[0].info.assigned_shard_count) == (13, 13)


async def test_sources_have_recipes_of_their_own(tmp_path: Path) -> None:
    """One field of two extensions, a measured one among them: rows lie in the batch's order, under one name."""
    ones = [
        [{"cls": b"%d" % n, "npy": npy(np.full((n % 3 + 1, 2), n, np.int64))} for n in range(low, low + 6)]
        for low in (0, 6)
    ]
    others = [
        [{"num": b"%d" % n, "arr": npy(np.full((n % 4 + 1, 2), n, np.int64))} for n in range(low, low + 4)]
        for low in (100, 104)
    ]
    async with feeding(tmp_path) as rig:
        fill(rig, "a", ones)
        fill(rig, "b", others)
        there = (("npy", '{"decode":"npy","from":["arr"]}'), ("cls", '{"decode":"int","from":["num"]}'))
        one = source("a", 3, (("cls", "int"), ("npy", "npy")))
        session = await rig.open(**asked(one, source("b", 1, there), keys=True, shuffle=True))
        assert [spec.name for spec in session.info.specs] == ["cls", "npy", "__key__", "__url__"]
        seen: Counter[int] = Counter()
        for batch in await batches(session):
            numbers = batch.ints()
            sizes = [(n % 4 if n >= 100 else n % 3) * 2 + 2 for n in numbers]
            region = batch.ready.regions[1]
            values = np.frombuffer(batch.data, np.int64, region.values_bytes // 8, region.values_at).tolist()
            assert values == [n for n, size in zip(numbers, sizes, strict=True) for _ in range(size)]
            shapes = np.frombuffer(batch.data, np.int64, 2 * len(numbers), region.shapes_at).reshape(-1, 2)
            assert shapes.tolist() == [[size // 2, 2] for size in sizes]
            for number, key, url in zip(numbers, batch.texts("__key__"), batch.texts("__url__"), strict=True):
                folder = "b" if number >= 100 else "a"
                assert key.decode().startswith(folder)
                assert url.decode().startswith(f"{ROOT}/{folder}/")
            seen.update(numbers)
        assert seen == Counter([*range(12), *[n for n in seen if n >= 100]])
        assert sum(n >= 100 for n in seen) == 4


async def test_augmentation_does_not_depend_on_other_recipes(tmp_path: Path) -> None:
    """A sample's crop is decided by its own seed, whether its rows are decoded with all others or apart."""
    async with feeding(tmp_path) as rig:
        for folder, first in (("a", 0), ("b", 100)):
            pictures = [natural_image(np.random.default_rng(first + n), 40, 50) for n in range(8)]
            fill(rig, folder, [[{"jpg": jpeg(picture)} for picture in pictures]])
        crop = '{"augment":["random_resized_crop","flip"],"decode":"image","from":[%s],"size":[16,16]}'
        same = (("jpg", crop % '"jpg"'),)
        other = (("jpg", crop % '"png","jpg"'),)
        runs = [
            [batch.data for batch in await batches(await rig.open(**asked(source("a", 1, same), source("b", 1, its))))]
            for its in (same, other)
        ]
        assert len(runs[0]) == 4
        assert runs[0] == runs[1]
        assert len(set(runs[0])) == 4


async def test_a_bad_sample_of_any_source_is_named(tmp_path: Path) -> None:
    """What cannot be decoded is dropped where it stands, or named with its own shard and key."""
    shards = numbered(100, 4, 4, extension="num")
    shards[1][2] = {"num": b"none"}
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, 4, 4))
        fill(rig, "b", shards)
        wanted = asked(source("a"), source("b", fields=(("cls", '{"decode":"int","from":["num"]}'),)))
        left = [n for batch in await batches(await rig.open(**wanted, bad_samples_max=1)) for n in batch.ints()]
        assert sorted(left) == [*range(8), *(n for n in range(100, 108) if n != 106)]
        assert left[0::2][:4] == [0, 1, 2, 3]
        with pytest.raises(BadSample, match="b01002") as caught:
            await batches(await rig.open(**wanted))
        assert caught.value.object == f"{ROOT}/b/01.tar"


async def test_filters_padding_and_policies_of_a_mixture(tmp_path: Path) -> None:
    """Rows of sources with recipes of their own are filtered, padded together, and replaced by rows of any source."""
    async with feeding(tmp_path) as rig:
        rows = [[{"cls": str(n).encode(), "bin": b"a" * n} for n in range(8)]]
        others = [[{"num": str(n).encode(), "raw": b"b" * (n - 100)} for n in range(100, 108)]]
        others[0][3] = {"num": b"none", "raw": b"b" * 3}
        fill(rig, "a", rows)
        fill(rig, "b", others)
        pad = '{"decode":"bytes","from":["%s"],"pad":{"value":1}}'
        one = (("cls", "int"), ("bin", pad % "bin"))
        other = (("cls", '{"decode":"int","from":["num"]}'), ("bin", pad % "raw"))
        wanted = asked(source("a", 1, one), source("b", 1, other))
        filters = ('{"field":"bin","max_bytes":6}',)
        made = await batches(await rig.open(**wanted, filters=filters, bad_samples="replace", bad_samples_max=1))
        shown = [
            (n, row, mask)
            for b in made
            for n, row, mask in zip(b.ints(), b.rows("bin"), b.rows("bin_mask"), strict=True)
        ]
        again = [flag for b in made for flag in b.ready.again or bytes(b.ready.rows)]
        for number, row, mask in shown:
            length = number % 100
            assert row == [ord("b" if number >= 100 else "a")] * length + [1] * (len(row) - length)
            assert mask == [place < length for place in range(len(row))]
        first = sorted(n for (n, _, _), flag in zip(shown, again, strict=True) if not flag)
        assert first == [*range(7), *(n for n in range(100, 107) if n != 103)]
        assert (sum(again), sum(b.ready.filtered for b in made)) == (1, 2)


async def test_a_mixture_resumes_at_every_step(tmp_path: Path) -> None:
    """From any step on, with nothing known but the step, a new session gives the tail and the next epoch."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, *[6] * 4))
        fill(rig, "b", numbered(1000, *[5] * 3))
        for mode in ("stratified", "sample", "batch", "batch-sample"):
            wanted = asked(source("a", 2), source("b", 1), shuffle=True, mix=mode)
            session = await rig.open(**wanted)
            whole = [batch.ints() for epoch in range(2) for batch in await batches(session, Cursor(epoch))]
            per_epoch = session.info.steps
            assert per_epoch is not None
            assert len(whole) == 2 * per_epoch
            if mode.startswith("batch"):
                assert all(len({value < 1000 for value in batch}) == 1 for batch in whole)
            await rig.close(session)
            for step in range(0, 2 * per_epoch, 3):
                again = await rig.open(**wanted, epoch=step // per_epoch)
                tail = await batches(again, Cursor(step // per_epoch, step % per_epoch))
                tail += await batches(again, Cursor(1)) if step < per_epoch else []
                assert [batch.ints() for batch in tail] == whole[step:]
                await rig.close(again)


async def test_epochs_and_weights_may_change(tmp_path: Path) -> None:
    """A source whose weight begins later comes from then on, and epochs are as long as was asked for."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, *[6] * 4))
        fill(rig, "b", numbered(1000, *[5] * 3))
        later = SourceSpec((f"{ROOT}/b/",), (("cls", "int"),), ((0, 0.0), (1, 1.0), (2, 3.0)))
        session = await rig.open(**asked(source("a"), later, samples_per_epoch=19))
        shares = []
        for epoch in range(4):
            values = [value for batch in await batches(session, Cursor(epoch)) for value in batch.ints()]
            assert len(values) == 16
            shares.append(sum(value < 1000 for value in values))
        assert shares == [16, 8, 4, 4]
        free = await rig.open(**asked(source("a"), later))
        assert [free.steps(epoch) for epoch in range(4)] == [6, 7, 5, 5]  # 24 of a; 15 of b, and 15 or 5 of a
        assert isinstance(await take(free, Cursor(3, 5)), EpochEnd)
        assert isinstance(await take(free, Cursor(1, 6)), Taken)
        told = await rig.open(**asked(source("a"), later, steps=3))
        assert [told.steps(epoch) for epoch in range(3)] == [3, 3, 3]


async def test_each_shard_is_fetched_once_and_ahead(tmp_path: Path) -> None:
    """With room for what is at hand and ahead, and no more, nothing still needed is dropped, and all is read ahead."""
    async with feeding(tmp_path, cache_bytes=12 * 16384) as rig:
        fill(rig, "a", numbered(0, *[4] * 60))
        fill(rig, "b", numbered(1000, *[4] * 20))
        session = await rig.open(**asked(source("a", 3), source("b", 1), shuffle=True))
        assert session.info.steps == 80
        for step in range(60):  # after that the next epoch is read ahead
            made = await take(session, Cursor(0, step))
            assert isinstance(made, Taken)
        shards = Counter(key for key in rig.store.reads if key.endswith(".tar"))
        assert len(shards) > 60
        assert {key: count for key, count in shards.items() if count > 1} == {}


async def test_the_same_data_under_two_recipes(tmp_path: Path) -> None:
    """One dataset mixed with itself under another recipe comes from one copy in the cache, fetched once."""
    async with feeding(tmp_path) as rig:
        fill(
            rig,
            "a",
            [[{"cls": b"%d" % (s + n), "neg": b"-%d" % (s + n)} for n in range(1, 5)] for s in range(0, 24, 4)],
        )
        other = source("a", fields=(("cls", '{"decode":"int","from":["neg"]}'),))
        session = await rig.open(**asked(source("a"), other, shuffle=True))
        values = [value for batch in await batches(session) for value in batch.ints()]
        assert sorted(values) == [*range(-24, 0), *range(1, 25)]
        assert values[0::2] != [-value for value in values[1::2]]
        assert Counter(key for key in rig.store.reads if key.endswith(".tar")).most_common(1)[0][1] == 1


async def test_resuming_further_on_drops_what_was_read_ahead(tmp_path: Path) -> None:
    """A mixture's stream that begins elsewhere than its epoch does not wait for what the open wished for."""
    async with feeding(tmp_path) as rig:
        for folder, first in (("a", 0), ("b", 1000)):
            fill(rig, folder, numbered(first, *[2] * 60))
        gated = [f"{folder}/{number:02d}.tar" for folder in "ab" for number in range(1, 20)]
        for key in gated:
            rig.store.gates[key] = asyncio.Event()
        session = await rig.open(**asked(source("a"), source("b")))
        await until(lambda: "a/01.tar" in rig.store.reads)
        made = await take(session, Cursor(0, 30))
        assert isinstance(made, Taken)
        assert sorted(made.ints()) == [60, 61, 1060, 1061]
        await until(lambda: "b/33.tar" in rig.store.reads)
        assert not {entry.ref.key for entry in rig.cache._disk.index} & set(gated)


async def test_what_cannot_be_mixed_is_refused(tmp_path: Path) -> None:
    """Unknown counts, sources that disagree, weights or modes of no sense, too few samples: each says what is wrong."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, 4, 4))
        fill(rig, "b", numbered(100, 4), counted=False)
        fill(rig, "c", [[{"cls": b"1.5", "txt": b"x"}] * 4])
        one = source("a")
        real, both = (("cls", "float"),), (("cls", "int"), ("txt", "str"))
        text = (("cls", '{"decode":"int","from":["txt"]}'),)
        unlike = "'cls' as dense int64.*as in s3://memory/a/, got dense float32.*memory/c/"
        cases: list[tuple[type[BadRequest], str, dict[str, object]]] = [
            (BadRequest, "sample counts of all 1 shards.*got 0.*feedd index s3://memory/b/", asked(one, source("b"))),
            (BadRecipe, unlike, asked(one, source("c", fields=real))),
            (BadRecipe, "the fields cls in every.*got cls, txt.*memory/c/", asked(one, source("c", fields=both))),
            (BadRecipe, "the fields cls in every.*got cls, txt", asked(source("a", fields=()), source("c", fields=()))),
            (BadRecipe, "expected one of cls, got txt", asked(one, source("a", fields=text))),
            (BadRequest, "weights of at least 0", asked(one, source("a", -1.0))),
            (BadRequest, "one of them positive", asked(source("a", 0.0), source("c", 0.0))),
            (BadRequest, "mode of mixing.*'both'", asked(one, source("c"), mix="both")),
            (BadRequest, "hold a step of 4 samples.*got 3", asked(one, source("a"), samples_per_epoch=3)),
            (BadRequest, "got none in some.*memory/c/.*sharding='sample'", asked(one, source("c"), partitions=2)),
            (BadRequest, "as many partitions as nodes", asked(one, one, mix="batch", partitions=2)),
            (BadRequest, "a step of 20 before source 0", asked(one, one, batch_size=20)),
            (
                BadRequest,
                "repeat at most 1000 times in a step, got one of 4 samples.*0.5 in a step of 8200.*memory/c/",
                asked(one, source("c"), batch_size=8200, samples_per_epoch=8200),
            ),
        ]
        for error, words, wanted in cases:
            with pytest.raises(error, match=f"(?s){words}") as caught:
                await rig.open(**wanted)
            assert type(caught.value) is error
        assert not rig.sessions


async def test_a_run_keeps_its_mixture(tmp_path: Path) -> None:
    """One mixture has one fingerprint; other weights, modes, lengths, recipes and data have others and are refused."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, *[6] * 4))
        fill(rig, "b", numbered(1000, *[5] * 3))
        session = await rig.open(**asked(source("a", 2), source("b", 1)))
        mark = session.info.fingerprint
        same = await rig.open(**asked(source("a", 0.4), source("b", 0.2)), expect_fingerprint=mark)
        assert same.info.fingerprint == mark
        others = [
            asked(source("a", 1), source("b", 1)),
            asked(source("a", 2), source("b", 1), mix="sample"),
            asked(source("a", 2), source("b", 1), samples_per_epoch=12),
            asked(source("a", 2), source("b", 1, (("cls", '{"decode":"int","from":["cls","num"]}'),))),
            asked(source("b", 1), source("a", 2)),
        ]
        marks = {(await rig.open(**other)).info.fingerprint for other in others}
        assert len(marks | {mark}) == 6
        with pytest.raises(ObjectChanged):
            await rig.open(**others[0], expect_fingerprint=mark)
        fill(rig, "b", numbered(1000, *[5] * 4))
        for listing in rig.pipeline.catalog._listings.values():
            listing.listed_s -= 3600
        grown = await rig.open(**asked(source("a", 2), source("b", 1)))
        assert grown.info.shard_count == 8
        held = await rig.open(**asked(source("a", 2), source("b", 1)), expect_fingerprint=mark)
        assert held.info.shard_count == 7


async def test_jobs_share_a_mixture(tmp_path: Path) -> None:
    """Two jobs that ask for the same mixture under one name take one decode of each batch."""
    async with feeding(tmp_path) as rig:
        fill(rig, "a", numbered(0, *[6] * 2))
        fill(rig, "b", numbered(1000, *[6] * 2, extension="num"))
        other = source("b", fields=(("cls", '{"decode":"int","from":["num"]}'),))
        one, two = [await rig.open(**asked(source("a"), other, shuffle=True), share="job") for _ in range(2)]
        for step in range(6):
            first, second = await take(one, Cursor(0, step)), await take(two, Cursor(0, step))
            assert isinstance(first, Taken)
            assert isinstance(second, Taken)
            assert first.ints() == second.ints()
        assert rig.recorder.total(metrics.PIPELINE_SHARED, outcome="made") == 6
