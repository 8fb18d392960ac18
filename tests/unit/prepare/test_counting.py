"""Counting a dataset: broken off, gone on with, and by two at once."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from feedd.dataset.index_file import Row, parse, render
from feedd.dataset.shard_part import WHOLE, ShardPart
from feedd.errors import BadRequest
from feedd.notices import Amount
from feedd.prepare import sample_counter as index
from feedd.prepare.index_writer import IndexTarget
from feedd.prepare.sample_counter import Counter, Counting
from feedd.prepare.shard_count import ShardCount
from tests.fakes.feeding import URL, Feeding, feeding
from tests.fakes.fetchers import until
from tests.fakes.files import parquet
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = (5, 9, 1, 7)
LATER = 9000.0  # everything is due


def _parted(rig: Feeding, folder: Path, part: ShardPart = WHOLE) -> Counter:
    """Return a counter of a folder, whose index lies beside the data."""
    url = f"{folder}/"
    return Counter(
        rig.pipeline, url, IndexTarget(rig.pipeline.stages.sources, index.index_url(url)), lambda _: None, part
    )


async def _ended(counter: Counter) -> Counting:
    await counter.open()
    await counter.count(2)
    await counter.save()
    await counter.finish()
    return counter.progress


def _filled(folder: Path) -> Path:
    folder.mkdir()
    for shard, count in enumerate(COUNTS):
        samples = [(f"{shard:02d}{ordinal:03d}", {"cls": b"1"}) for ordinal in range(count)]
        (folder / f"{shard:02d}.tar").write_bytes(tar_bytes(samples))
    return folder


def _counter(rig: Feeding, out: Path) -> Counter:
    return Counter(rig.pipeline, URL, IndexTarget(rig.pipeline.stages.sources, str(out)), lambda _: None)


async def _counted(rig: Feeding, out: Path) -> Counting:
    return await _ended(_counter(rig, out))


def _rows(out: Path) -> dict[str, int]:
    return {row.key: row.sample_count for row in parse(out.read_bytes())}


async def test_broken_off_and_gone_on_with(tmp_path: Path) -> None:
    """What was counted when it was cancelled is saved, in a file of one's choice, and not counted again."""
    out = tmp_path / "out.json"
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        rig.store.gates["train/02.tar"] = asyncio.Event()
        counter = _counter(rig, out)
        await counter.open()
        counting = asyncio.ensure_future(counter.count(1))
        await until(lambda: counter.progress.done_count == 2)
        counting.cancel()
        await asyncio.wait((counting,))
        await counter.save()
        assert _rows(out) == {"00.tar": 5, "01.tar": 9}
        rig.store.gates["train/02.tar"].set()
        rig.store.reads.clear()
        progress = await _counted(rig, out)
        assert (progress.known_count, progress.done_count, progress.sample_count) == (2, 4, 22)
        assert set(rig.store.reads) == {"train/02.tar", "train/03.tar"}
        assert _rows(out) == {f"{shard:02d}.tar": count for shard, count in enumerate(COUNTS)}


async def test_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second takes over what the first saved while it was counting, and loses none of it."""
    out = tmp_path / "out.json"
    monkeypatch.setattr(index, "_SAVE_EVERY_S", -LATER)  # after each shard
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        rig.store.gates["train/00.tar"] = asyncio.Event()
        slow = _counter(rig, out)
        await slow.open()
        counting = asyncio.ensure_future(slow.count(1))
        await until(lambda: rig.store.reads)
        rows = {"02.tar": 1, "03.tar": 7}
        others = {key: rig.pipeline.stages.sources.store("s3://memory").head(f"train/{key}") for key in rows}
        refs = {key: await head for key, head in others.items()}
        theirs = [Row(key, ref.size_bytes, ref.etag, rows[key]) for key, ref in refs.items()]
        out.write_bytes(render([*theirs, Row("elsewhere.tar", 1, "x", 3)]))  # listed later than ours
        rig.store.gates["train/00.tar"].set()
        await counting
        assert set(rig.store.reads) == {"train/00.tar", "train/01.tar"}
        assert (slow.progress.known_count, slow.progress.done_count, slow.progress.sample_count) == (2, 4, 22)
        assert _rows(out) == {"00.tar": 5, "01.tar": 9, "02.tar": 1, "03.tar": 7, "elsewhere.tar": 3}


async def test_rows_of_what_is_gone_go(tmp_path: Path) -> None:
    """A shard that was removed or replaced since is not in the index any more, or with its new count."""
    out = tmp_path / "out.json"
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        await _counted(rig, out)
        rig.store.delete("train/03.tar")
        rig.store.shard(1, [{"cls": b"1"}])
        progress = await _counted(rig, out)
        assert (progress.known_count, progress.done_count) == (2, 3)
        assert _rows(out) == {"00.tar": 5, "01.tar": 1, "02.tar": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"my thesis", "expected an index"), (render([Row("else.tar", 1, "x", 1)]), "counts of 1 other objects")],
)
async def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    """What was named by hand and is no index of this data is not written over."""
    out = tmp_path / "out.json"
    out.write_bytes(content)
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        with pytest.raises(BadRequest, match=said):
            await _counter(rig, out).open()
    assert out.read_bytes() == content


async def test_what_shards_leave_out_is_told_once_for_all(tmp_path: Path) -> None:
    """Members that no field can have are counted by name, however many shards hold them, beside what is no data."""
    async with feeding(tmp_path) as rig:
        for shard in range(3):
            rig.store.shard(shard, [{"cls": b"1", "__url__": b"x"}])
        rig.store.put("train/_old/9.tar", b"x" * 512)
        progress = await _counted(rig, tmp_path / "out.json")
        told = {notice.kind.value: notice.amount for notice in progress.notices}
        assert told == {
            "hidden-shards": Amount(1, 512, ("train/_old/9.tar",)),
            "reserved-names": Amount(1, 0, ("__url__",)),
        }
        again = await _counted(rig, tmp_path / "out.json")
        assert [notice.kind.value for notice in again.notices] == ["hidden-shards"], "nothing is read again"


async def test_fields_that_later_shards_have_are_told_by_who_counts(tmp_path: Path) -> None:
    """All shards are read, so all such fields are known; a run that does not read the first shard tells none."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [])
        rig.store.shard(1, [{"cls": b"1"}])
        for shard in (2, 3):
            rig.store.shard(shard, [{"cls": b"1", "txt": b"x"}])
        progress = await _counted(rig, tmp_path / "out.json")
        told = {notice.kind.value: notice.amount for notice in progress.notices}
        assert set(told) == {"late-fields"}
        assert told["late-fields"].count == 1
        rig.store.shard(2, [{"cls": b"2", "txt": b"y"}])
        rig.store.shard(3, [{"cls": b"2", "json": b"{}"}])
        assert (await _counted(rig, tmp_path / "out.json")).notices == ()


async def test_columns_of_parquet_are_told_without_being_read(tmp_path: Path) -> None:
    """Rows are counted by the footer, which also names the columns that no field can have."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.parquet", parquet(pa.table({"n": [1], "meta": [{"a": 1, "b": "x"}]})))
        rig.store.put("train/1.parquet", parquet(pa.table({"n": [1], "chat": [{"a": 1, "b": "x"}]})))
        progress = await _counted(rig, tmp_path / "out.json")
        (notice,) = progress.notices
        assert (notice.kind.value, notice.amount.count) == ("unread-columns", 2), "one notice for both"
        assert any(name.startswith("meta: struct<") for name in notice.amount.examples)


async def test_of_large_members_only_headers_are_fetched(tmp_path: Path) -> None:
    """Samples are counted by few bytes where headers tell them; a damaged shard is read whole, and then refused."""
    out = tmp_path / "out.json"
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"bin": bytes(2 << 20)}] * 3)
        rig.store.shard(1, [{"cls": b"1"}] * 4)
        await _counted(rig, out)
        assert _rows(out) == {"00.tar": 3, "01.tar": 4}
        assert rig.store.reads.count("train/00.tar") == 4
        assert rig.store.read_bytes < 1 << 19
        rig.store.put("train/02.tar", tar_bytes([("a", {"bin": bytes(2 << 20)})])[: 2 << 20])
        progress = await _counted(rig, out)
        assert [str(one.object) for one in progress.failures] == [f"{URL}02.tar"]
        assert "got end of data" in str(progress.failures[0])


async def test_parts_write_files_of_their_own_and_the_last_writes_the_index(tmp_path: Path) -> None:
    """Until the last part has ended there is no index; it is that of one run. Whatever a part counted is kept."""
    folder = _filled(tmp_path / "train")
    one, three = ShardPart(1, 3), [ShardPart(number, 3) for number in range(3)]
    async with feeding(tmp_path) as rig:
        for part, known in ((three[2], 1), (three[1], 1)):
            progress = await _ended(_parted(rig, folder, part))
            assert (progress.done_count, progress.known_count) == (known, 0)
        assert not (folder / "_feedd_index.json").exists()
        assert sorted(path.name for path in (folder / "_feedd_manifest").iterdir()) == [
            "part-00001-of-00003.json",
            "part-00002-of-00003.json",
        ]
        assert (await _ended(_parted(rig, folder, one))).known_count == 1, "a part is repeated: nothing is read"
        stopped = _parted(rig, folder, three[0])
        await stopped.open()
        await stopped.note(0, ShardCount(5, ("cls",), ()))
        await stopped.save()  # the first part has two shards, and is killed after one
        assert (await _ended(_parted(rig, folder, one))).done_count == 3, "one part has not ended"
        assert not (folder / "_feedd_index.json").exists()
        progress = await _ended(_parted(rig, folder, three[0]))
        assert (progress.done_count, progress.known_count, progress.sample_count) == (4, 3, 22)
        parted = (folder / "_feedd_index.json").read_bytes()
        shutil.rmtree(folder / "_feedd_manifest")
        (folder / "_feedd_index.json").unlink()
        assert (await _ended(_parted(rig, folder))).known_count == 0
        assert (folder / "_feedd_index.json").read_bytes() == parted


async def test_a_whole_run_takes_over_what_parts_have_counted(tmp_path: Path) -> None:
    """Also if a part never ended; of a shard that was replaced since, the count is not used."""
    folder = _filled(tmp_path / "train")
    async with feeding(tmp_path) as rig:
        await _ended(_parted(rig, folder, ShardPart(1, 2)))
        (folder / "03.tar").write_bytes(tar_bytes([("a", {"cls": b"1"})]))
        progress = await _ended(_parted(rig, folder))
        assert (progress.done_count, progress.known_count, progress.sample_count) == (4, 1, 16)
