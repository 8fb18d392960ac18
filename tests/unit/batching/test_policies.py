"""What becomes of bad samples: left out, replaced, named in a file; and that the plan never notices."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadRequest, BadSample, BadShard
from feedd.metrics import PIPELINE_QUARANTINED
from feedd.values import ByteRange, Cursor
from tests.fakes.feeding import GatedStore, Taken, batches, feeding, take
from tests.fakes.sinks import into
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from pathlib import Path

_FIELDS = (("cls", "int"), ("txt", "str"), ("bin", '{"decode": "bytes", "pad": {}}'))


def _store(store: GatedStore, *bad: int) -> None:
    """Store 3 shards of 4 samples; those whose number is in ``bad`` have a broken label."""
    for shard in range(3):
        store.shard(
            shard,
            [
                {
                    "cls": b"broken" if (n := shard * 4 + at) in bad else str(n).encode(),
                    "txt": b"t" * n,
                    "bin": bytes([n] * (n + 1)),
                }
                for at in range(4)
            ],
        )


def _told(batch: Taken) -> list[tuple[int, bytes, list[int]]]:
    """Return what each row of a batch holds."""
    bins = [row[: sum(mask)] for row, mask in zip(batch.rows("bin"), batch.rows("bin_mask"), strict=True)]
    return list(zip(batch.ints(), batch.texts("txt"), bins, strict=True))


def _sample(number: int) -> tuple[int, bytes, list[int]]:
    return number, b"t" * number, [number] * (number + 1)


async def test_an_error_is_the_first_bad_sample(tmp_path: Path) -> None:
    """Whatever the budget says."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 5)
        session = await rig.open(fields=_FIELDS, bad_samples="error", bad_samples_max=9)
        with pytest.raises(BadSample, match="'01001'"):
            await batches(session)


async def test_replaced_rows_keep_batches_full(tmp_path: Path) -> None:
    """The next good row of the batch, around its end, takes the place; every field of it, marked."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 2, 7, 8)
        session = await rig.open(fields=_FIELDS, bad_samples="replace", bad_samples_max=9, keys=True)
        made = await batches(session)
        assert [_told(batch) for batch in made] == [
            [_sample(n) for n in shown] for shown in ((0, 3, 3, 3), (4, 5, 6, 4), (9, 9, 10, 11))
        ]
        assert [list(batch.ready.again) for batch in made] == [[0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
        assert [batch.ready.bad_samples for batch in made] == [2, 1, 1]
        assert made[0].texts("__key__") == [b"00000", b"00003", b"00003", b"00003"]
        assert all(batch.ready.oversize is None for batch in made)


async def test_replaced_in_place(tmp_path: Path) -> None:
    """Where all fields have one size, rows are written over where they lie."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 7)
        session = await rig.open(bad_samples="replace", bad_samples_max=2)
        assert [batch.ints() for batch in await batches(session)] == [[0, 2, 2, 3], [4, 5, 6, 4], [8, 9, 10, 11]]


async def test_a_replacement_may_not_fit(tmp_path: Path) -> None:
    """Where large rows take the place of small ones the batch may outgrow its slot: it then travels by itself."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"cls": b"0", "bin": b"a"}] * 4)
        rig.store.shard(1, [{"cls": b"?", "bin": b"b"}] * 3 + [{"cls": b"1", "bin": b"x" * 3000}])
        session = await rig.open(fields=(("cls", "int"), ("bin", "bytes")), bad_samples="replace", bad_samples_max=9)
        _, second = await batches(session)
        assert second.ready.oversize is not None
        assert second.texts("bin") == [b"x" * 3000] * 4
        assert second.ints() == [1] * 4


async def test_nothing_to_replace_by(tmp_path: Path) -> None:
    """A step of bad samples only cannot be full: that is an error, and says what helps."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 4, 5, 6, 7)
        session = await rig.open(bad_samples="replace", bad_samples_max=9)
        assert isinstance(await take(session, Cursor(0, 0)), Taken)
        with pytest.raises(BadSample, match=r"all 4 samples of a step are bad.*'01000'.*larger batches"):
            await take(session, Cursor(0, 1))


async def test_what_is_replaced_is_another_run(tmp_path: Path) -> None:
    """Ranks that replace are told from ranks that leave out; where bad samples are named makes no difference."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        marks = {
            policy: (await rig.open(fields=_FIELDS, bad_samples=policy)).info.fingerprint
            for policy in ("skip", "quarantine", "error", "replace")
        }
    assert marks["skip"] == marks["quarantine"] == marks["error"] != marks["replace"]


@pytest.mark.parametrize("policy", ["skip", "replace", "quarantine"])
async def test_the_budget_holds_under_each_policy(tmp_path: Path, policy: str) -> None:
    """More bad samples than allowed are an error."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 1, 6, 9)
        session = await rig.open(fields=_FIELDS, bad_samples=policy, bad_samples_max=2)
        with pytest.raises(BadSample, match="'02001'"):
            await batches(session)


@pytest.mark.parametrize("policy", ["skip", "replace", "quarantine"])
async def test_positions_are_preserved(tmp_path: Path, policy: str) -> None:
    """Cursors and steps are those of the same data without bad samples, and any step can be made alone."""
    async with feeding(tmp_path / "a") as rig:
        _store(rig.store)
        whole = [batch.ready.cursor for batch in await batches(await rig.open(shuffle=True, seed=3))]
    async with feeding(tmp_path / "b") as rig:
        _store(rig.store, 1, 6, 9)
        session = await rig.open(shuffle=True, seed=3, bad_samples=policy, bad_samples_max=9)
        made = await batches(session)
        assert [batch.ready.cursor for batch in made] == whole
        again = await take(session, made[1].ready.cursor)
        assert isinstance(again, Taken)
        assert again.ints() == made[1].ints()


async def test_quarantine_names_each_sample_once(tmp_path: Path) -> None:
    """One line for each, with where its bytes lie; made again, or by another job, it is not written again."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 5)
        rig.store.shard(2, [{"cls": b"8"}, {"txt": b"no label"}, {"cls": b"10"}, {"cls": b"11"}])
        for _ in range(2):
            session = await rig.open(bad_samples="quarantine", bad_samples_max=2)
            assert [batch.ints() for batch in await batches(session)] == [[0, 1, 2, 3], [4, 6, 7], [8, 10, 11]]
        lines = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
        assert [(one["url"][-6:], one["key"], one["ordinal"], one["field"], one["epoch"]) for one in lines] == [
            ("01.tar", "01001", 1, "cls", 0),
            ("02.tar", "02001", 1, "cls", 0),
        ]
        assert "integer" in lines[0]["reason"]
        assert "without it" in lines[1]["reason"]
        for line, what in zip(lines, (b"broken", b"no label"), strict=True):
            ref = await rig.store.head(line["url"].removeprefix("s3://memory/"))
            data = bytearray(ref.size_bytes)
            await rig.store.read_into(ref, ByteRange(0, ref.size_bytes), into(data))
            assert data[line["offset"] :].startswith(what)
        await batches(session, Cursor(1))
        assert rig.recorder.total(PIPELINE_QUARANTINED) == 4


async def test_the_file_is_bounded(tmp_path: Path) -> None:
    """It makes room for a new one when it is full, and one older one is kept."""
    async with feeding(tmp_path, quarantine_bytes=1000) as rig:
        rig.store.shard(0, [{"cls": b"?"}] * 40)
        await batches(await rig.open(bad_samples="quarantine", bad_samples_max=40))
        files = [tmp_path / "quarantine.jsonl", tmp_path / "quarantine.jsonl.1"]
        assert all(0 < file.stat().st_size <= 1000 for file in files)
        lines = [json.loads(line) for file in reversed(files) for line in file.read_text().splitlines()]
        assert [one["ordinal"] for one in lines] == list(range(40))[-len(lines) :]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "fifo with a reader"])
async def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, kind: str) -> None:
    """The samples are skipped all the same, and nothing is written where another user may read."""
    async with feeding(tmp_path) as rig:
        _store(rig.store, 5)
        path, reader = tmp_path / "quarantine.jsonl", -1
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if kind != "fifo" else -1
        session = await rig.open(bad_samples="quarantine", bad_samples_max=1)
        assert [batch.ready.bad_samples for batch in await batches(session)] == [0, 1, 0]
        assert rig.recorder.total(PIPELINE_QUARANTINED) == 0
        assert not (tmp_path / "elsewhere").exists()
        if reader >= 0:
            assert os.read(reader, 10) == b""
            os.close(reader)


@pytest.mark.parametrize("policy", ["skip", "replace", "quarantine"])
async def test_a_bad_shard_is_an_error(tmp_path: Path, policy: str) -> None:
    """Without an index nobody knows how many samples it stands for, so no policy forgives it."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        rig.store.put("train/01.tar", b"no tar at all" * 100)
        session = await rig.open(bad_samples=policy, bad_samples_max=1000)
        with pytest.raises(BadShard, match=r"01\.tar"):
            await batches(session)


async def test_unknown_policies_are_refused(tmp_path: Path) -> None:
    """By a message that lists those there are."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/00.tar", tar_bytes([("a", {"cls": b"1"})]))
        with pytest.raises(BadRequest, match="error, skip, replace, quarantine"):
            await rig.open(bad_samples="ignore")
