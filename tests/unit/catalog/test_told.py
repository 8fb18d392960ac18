"""Counts from files beside the data, through the daemon's stages: who is believed, and what a wrong one comes to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from feedd.catalog import sidecar_counts as told
from feedd.dataset.index_file import Row, render
from feedd.errors import NotFound, ObjectChanged
from tests.fakes.feeding import URL, Feeding, batches, feeding, rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from feedd.dataset.listing import Listing

PASSED_OVER = "sample counts beside the data are skipped"


def _write(rig: Feeding, name: str, content: object) -> None:
    rig.store.put(f"train/{name}", content if isinstance(content, bytes) else json.dumps(content).encode())


def _sizes(rig: Feeding, *counts: int) -> None:
    _write(rig, "sizes.json", {f"{shard:02d}.tar": count for shard, count in enumerate(counts)})


async def _listing(rig: Feeding) -> Listing:
    for listing in rig.pipeline.catalog._listings.values():
        listing.listed_s -= 3600
    return await rig.pipeline.catalog.listing((URL,), lambda _: False)


async def _passed_over(rig: Feeding) -> list[str]:
    """Return the names of the files that the next listing says it passes over."""
    with capture_logs() as logs:
        await _listing(rig)
    return [log["object"].rpartition("/")[2] for log in logs if log["event"] == PASSED_OVER]


async def _seen(rig: Feeding, **changes: object) -> list[int]:
    return [number for batch in await batches(await rig.open(**changes)) for number in batch.ints()]


async def test_steps_are_known_by_what_lies_there(tmp_path: Path) -> None:
    """A sizes.json makes ranks drop instead of join, with nothing read but itself; its shards are all there is."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6, 7)
        _sizes(rig, 5, 6, 7)
        _write(rig, "__len__", b"18")
        listing = await _listing(rig)
        assert (listing.counts, listing.indexed, len(listing.refs)) == ({0: 5, 1: 6, 2: 7}, True, 3)
        assert rig.store.reads == ["train/sizes.json"]
        ranks = [await rig.open(uneven="auto", topology=rank(number, 2)) for number in range(2)]
        assert [(session.info.uneven, session.info.steps) for session in ranks] == [("drop", 2)] * 2
        assert len(await _seen(rig, uneven="drop")) == 16


async def test_files_with_bytes_count_what_agrees(tmp_path: Path) -> None:
    """Of a MosaicML index only the shards of those bytes are known; they are not enough to drop by."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        sizes: Sequence[int] = (await _listing(rig)).sizes.tolist()
        shards = [
            {"raw_data": {"basename": f"{n:02d}.tar", "bytes": size - n}, "zip_data": None, "samples": 5 + n}
            for n, size in enumerate(sizes)
        ]
        _write(rig, "index.json", {"version": 2, "shards": shards})
        listing = await _listing(rig)
        assert (listing.counts, listing.indexed) == ({0: 5}, False)
        assert (await rig.open(uneven="auto", topology=rank(0, 2))).info.uneven == "join"


async def test_who_goes_first(tmp_path: Path) -> None:
    """Feedd's own index before what others claim; of those, one that knows bytes before one that does not."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6, 7)
        refs = (await _listing(rig)).refs
        _sizes(rig, 1, 1, 7)
        row = {"url": "x/01.tar", "nsamples": 6, "filesize": refs[1].size_bytes}
        _write(rig, "shardindex.json", {"wids_version": 1, "shardlist": [row]})
        _write(rig, "_feedd_index.json", render([Row("00.tar", refs[0].size_bytes, refs[0].etag, 5)]))
        listing = await _listing(rig)
        assert (listing.counts, listing.indexed) == ({0: 5, 1: 6, 2: 7}, True)
        assert sorted(await _seen(rig)) == [*range(5), *range(100, 106), *range(200, 207)]


@pytest.mark.parametrize("rubbish", [b"", b"no json", b"\xff\xfe", b"{}", b"[]", b'{"version": 2}'])
async def test_what_is_no_such_file_is_passed_over(tmp_path: Path, rubbish: bytes) -> None:
    """Each is named once in the log, none is an error, and none is a shard."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5)
        names = ("_feedd_index.json", "_info.json", "index.json", "shardindex.json", "sizes.json")
        for name in names:
            _write(rig, name, rubbish)
        assert sorted(await _passed_over(rig)) == sorted(names)
        assert (await _listing(rig)).counts == {}
        assert len(await _seen(rig)) == 5


async def test_a_sizes_file_of_other_shards(tmp_path: Path) -> None:
    """One that was left while shards came is passed over as a whole: it may be wrong of all."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        _sizes(rig, 5)
        assert await _passed_over(rig) == ["sizes.json"]
        assert (await _listing(rig)).counts == {}
        _sizes(rig, 5, 6)
        assert await _passed_over(rig) == []
        assert (await _listing(rig)).counts == {0: 5, 1: 6}


async def test_too_large_and_too_many_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond the bound is passed over before a byte of it is read; so is a dataset full of them."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5)
        monkeypatch.setattr(told, "CLAIMS_BYTES_MAX", 50)
        _write(rig, "sizes.json", {"00.tar": 5, "a" * 50: 1})
        assert await _passed_over(rig) == ["sizes.json"]
        monkeypatch.setattr(told, "_CLAIMS_MAX", 1)
        _sizes(rig, 5)
        assert (await _listing(rig)).counts == {0: 5}
        rig.store.reads.clear()
        _write(rig, "index.json", b"small")
        await _listing(rig)
        assert rig.store.reads == []


async def test_nothing_but_such_files_is_nothing(tmp_path: Path) -> None:
    """A prefix without shards names nothing, whatever it says of some."""
    async with feeding(tmp_path) as rig:
        _sizes(rig, 5)
        with pytest.raises(NotFound):
            await rig.open()


async def test_a_wrong_count_is_an_error_when_the_shard_is_read(tmp_path: Path) -> None:
    """No batch is made by it; the error says file, expected and got; corrected, the next open is right."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6, 7)
        _sizes(rig, 5, 8, 7)
        session = await rig.open(uneven="drop")
        assert session.info.steps == 5
        with pytest.raises(ObjectChanged) as caught:
            await batches(session)
        assert caught.value.message == "expected 8 samples, as s3://memory/train/sizes.json says, got 6"
        assert caught.value.object == "s3://memory/train/01.tar"
        assert "correct" in caught.value.hint
        with pytest.raises(ObjectChanged, match=r"expected 8 samples, as s3://memory/train/sizes.json says, got 6"):
            await rig.open(uneven="drop")  # read before: known at once
        _sizes(rig, 5, 6, 7)
        again = await rig.open(uneven="drop")
        assert again.info.steps == 4
        assert len([number for batch in await batches(again) for number in batch.ints()]) == 16


async def test_a_corrected_file_does_not_change_running_plans(tmp_path: Path) -> None:
    """Who opened with the wrong counts keeps them until he meets them; who opens later has the right ones."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        _sizes(rig, 5, 9)
        before = await rig.open(uneven="drop")
        _sizes(rig, 5, 6)
        await _listing(rig)
        after = await rig.open(uneven="drop")
        assert (before.info.steps, after.info.steps) == (3, 2)
        assert before._parts.view.counts == {0: 5, 1: 9}
        assert [len(batch.ints()) for batch in await batches(after)] == [4, 4]


async def test_counting_believes_only_its_own(tmp_path: Path) -> None:
    """What ``feedd index`` starts from does not hold what others claim."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        _sizes(rig, 5, 6)
        ref = (await _listing(rig)).refs[1]
        _write(rig, "_feedd_index.json", render([Row("01.tar", ref.size_bytes, ref.etag, 6)]))
        fresh = await rig.pipeline.catalog.fresh((URL,))
        assert (fresh.counts, fresh.indexed) == ({1: 6}, False)


async def _sidecar_counts(rig: Feeding) -> dict[str, tuple[int, str]]:
    """Return what an open tells of files beside the data: how many of each kind, and the first."""
    await _listing(rig)
    session = await rig.open()
    found = {notice.kind.value: notice.amount for notice in session.info.notices}
    return {kind: (amount.count, amount.examples[0]) for kind, amount in found.items()}


async def test_files_that_are_not_used_are_told(tmp_path: Path) -> None:
    """Each open answers how many there are, and of the first why; corrected, it answers nothing."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        _sizes(rig, 5)
        _write(rig, "_feedd_index.json", b"no json")
        count, first = (await _sidecar_counts(rig))["unused-sidecars"]
        assert count == 2
        assert first.startswith("train/_feedd_index.json: expected")
        rig.store.delete("train/_feedd_index.json")
        _sizes(rig, 5, 6)
        assert await _sidecar_counts(rig) == {}


async def test_more_files_than_are_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond the bound count although none of them is read."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5)
        monkeypatch.setattr(told, "_CLAIMS_MAX", 1)
        _sizes(rig, 5)
        _write(rig, "index.json", b"small")
        assert await _sidecar_counts(rig) == {
            "unused-sidecars": (2, "train/index.json: expected at most 1 such files, got 2")
        }


async def test_counts_that_are_not_used_are_told(tmp_path: Path) -> None:
    """Counts of replaced shards, and those that another file contradicts, are told until they are right."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5, 6)
        refs = (await _listing(rig)).refs
        right = [Row("00.tar", refs[0].size_bytes, refs[0].etag, 5), Row("01.tar", refs[1].size_bytes, refs[1].etag, 6)]
        _write(rig, "_feedd_index.json", render([right[0], Row("01.tar", refs[1].size_bytes, "other", 6)]))
        first = f"train/01.tar: counted as {refs[1].size_bytes} bytes with ETag other, has {refs[1].size_bytes} with"
        found = await _sidecar_counts(rig)
        assert found == {"unused-counts": (1, f"{first} ETag {refs[1].etag}")}
        _write(rig, "_feedd_index.json", render(right))
        _sizes(rig, 5, 7)
        assert await _sidecar_counts(rig) == {
            "unused-counts": (1, "train/01.tar: counted as 6 samples, in train/sizes.json as 7")
        }
        _sizes(rig, 5, 6)
        assert await _sidecar_counts(rig) == {}


async def test_two_indexes_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    """Both count the very same object, one in its folder and one above, so one of them is not used."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5)
        rig.store.put("train/a/00.tar", b"\0" * 1024)
        ref = next(ref for ref in (await _listing(rig)).refs if ref.key == "train/a/00.tar")
        _write(rig, "_feedd_index.json", render([Row("a/00.tar", ref.size_bytes, ref.etag, 5)]))
        _write(rig, "a/_feedd_index.json", render([Row("00.tar", ref.size_bytes, ref.etag, 6)]))
        reasons = (await _listing(rig)).passed_over.reasons
        first = "train/a/00.tar: counted as 5 samples, in train/a/_feedd_index.json as 6"
        assert {kind.value: amount.examples for kind, amount in reasons.items()} == {"unused-counts": (first,)}


async def test_counting_again_tells_no_counts_that_it_replaces(tmp_path: Path) -> None:
    """What ``feedd index`` starts from tells files that are not used, and no counts: it makes those anew."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(5)
        _write(rig, "_feedd_index.json", render([Row("00.tar", 1, "other", 5)]))
        _write(rig, "sizes.json", b"no json")
        fresh = await rig.pipeline.catalog.fresh((URL,))
        assert {kind.value: amount.count for kind, amount in fresh.passed_over.reasons.items()} == {
            "unused-sidecars": 1
        }
