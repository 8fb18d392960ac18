"""Fields that the first shard lacks: they are in no batch, and whoever named no fields is told as shards are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from feedd.metrics import PIPELINE_NOTICES
from feedd.notices import Amount, NoticeKind
from tests.fakes.feeding import Feeding, batches, feeding
from tests.fakes.files import parquet
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.sessions.test_mixed_sessions import asked, fill, source

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.sessions.session import Session


def _late(session: Session) -> Amount | None:
    """Return what a session tells of such fields; None: there are none."""
    return next((one.amount for one in session.info.notices if one.kind is NoticeKind.LATE_FIELDS), None)


def _shards(rig: Feeding) -> None:
    rig.store.shard(0, [{"cls": b"1"}, {"cls": b"2"}])
    rig.store.shard(1, [{"cls": b"3", "txt": b"x"}])
    rig.store.shard(2, [{"cls": b"4", "json": b"{}", "txt": b"y"}])
    rig.store.shard(3, [{"cls": b"5", "txt": b"z"}])


async def test_fields_of_later_shards_are_told_when_they_are_read(tmp_path: Path) -> None:
    """Nothing is known at the opening; at the end each field is told with the first shard that has it."""
    async with feeding(tmp_path) as rig:
        _shards(rig)
        session = await rig.open(fields=())
        assert _late(session) is None
        assert sorted(number for batch in await batches(session) for number in batch.ints()) == [1, 2, 3, 4, 5]
        assert _late(session) == Amount(2, 0, ("txt, first in train/01.tar", "json, first in train/02.tar"))
        assert len(rig.store.reads) == 4, "nothing is read for that"


async def test_they_are_logged_once_and_counted(tmp_path: Path) -> None:
    """However many shards have more fields, and however many sessions read them, the log has one line."""
    async with feeding(tmp_path) as rig:
        _shards(rig)
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                session = await rig.open(fields=(), window_shards=1, batch_size=1)
                for _batch in await batches(session):
                    _late(session)  # as a stream asks before each message
        lines = [line for line in logs if line.get("kind") == "late-fields"]
        assert [(line["log_level"], line["count"]) for line in lines] == [("warning", 1)]
        # one and then another on the way, and both at once when the next session opens
        assert rig.recorder.total(PIPELINE_NOTICES, kind="late-fields") == 1 + 1 + 2


async def test_who_names_fields_is_told_nothing(tmp_path: Path) -> None:
    """What is in none of the fields that were named is meant to be left out, whoever else reads the data."""
    async with feeding(tmp_path) as rig:
        _shards(rig)
        named, other = await rig.open(), await rig.open(fields=())
        for session in (named, other):
            await batches(session)
        assert _late(other) is not None
        assert _late(named) is None
        assert _late(await rig.open()) is None


async def test_who_names_fields_of_records_is_told_nothing(tmp_path: Path) -> None:
    """So it is where only the data can tell how a field that was named is stored."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.tfrecord", tfrecord(example(cls=[1])))
        rig.store.put("train/1.tfrecord", tfrecord(example(cls=[2], more=[3])))
        named = await rig.open()
        assert len(await batches(named)) == 1
        assert _late(named) is None


async def test_columns_that_only_later_tables_have(tmp_path: Path) -> None:
    """So it is with columns, also with those that nobody could read."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.parquet", parquet(pa.table({"cls": [1]})))
        rig.store.put("train/1.parquet", parquet(pa.table({"cls": [2], "Extra": [3], "meta": [{"a": 1}]})))
        session = await rig.open(fields=())
        assert len(await batches(session)) == 1
        late = _late(session)
        assert late is not None
        assert late.count == 2
        assert late.examples[0] == "extra, first in train/1.parquet"
        assert late.examples[1].startswith("meta: struct<")
        assert _late(await rig.open(fields=())) == late, "who opens later is told at once"
        assert _late(await rig.open()) is None


async def test_each_source_of_a_mixture_has_fields_of_its_own(tmp_path: Path) -> None:
    """A field that one source has from its first shard on is late in another; of named fields nothing is told."""
    async with feeding(tmp_path) as rig:
        both = {"cls": b"1", "txt": b"x"}
        fill(rig, "a", [[both], [both]])
        fill(rig, "b", [[{"cls": b"2"}], [both]])
        session = await rig.open(**asked(source("a"), source("b", fields=())))
        await batches(session)
        assert _late(session) == Amount(1, 0, ("txt, first in b/01.tar",))
