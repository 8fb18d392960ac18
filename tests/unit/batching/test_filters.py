"""Filters: what is left out on purpose, counted apart from what is bad, its place in the plan kept."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.errors import BadRecipe, BadSample
from feedd.metrics import PIPELINE_FILTERED
from tests.fakes.feeding import GatedStore, batches, feeding
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feeding import Feeding, Taken


def _store(store: GatedStore) -> None:
    """Store 3 shards of 4 samples, numbered; sample ``n`` has ``n`` bytes of text and the score ``n / 10``."""
    for shard in range(3):
        store.shard(
            shard,
            [
                {"cls": str(n).encode(), "txt": b"t" * n, "score": str(n / 10).encode()}
                for n in range(shard * 4, shard * 4 + 4)
            ],
        )


async def _read(rig: Feeding, *filters: dict[str, Any], **changes: object) -> list[Taken]:
    return await batches(await rig.open(filters=tuple(map(json.dumps, filters)), **changes))


def _numbers(made: list[Taken]) -> list[list[int]]:
    return [batch.ints() for batch in made]


async def test_by_stored_size(tmp_path: Path) -> None:
    """Bounds are included; steps keep their places, short or empty; nothing is bad."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        whole = [batch.ready.cursor for batch in await _read(rig)]
        made = await _read(rig, {"field": "txt", "min_bytes": 2, "max_bytes": 3}, keys=True)
        assert _numbers(made) == [[2, 3], [], []]
        assert [batch.ready.filtered for batch in made] == [2, 4, 4]
        assert [batch.ready.bad_samples for batch in made] == [0, 0, 0]
        assert [batch.ready.cursor for batch in made] == whole
        assert made[0].texts("__key__") == [b"00002", b"00003"]
        assert rig.recorder.total(PIPELINE_FILTERED) == 10


async def test_by_a_number(tmp_path: Path) -> None:
    """Text is read as float64, so that 0.3 is 0.3; several conditions must all be met."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        made = await _read(rig, {"field": "score", "min": 0.3, "max": 0.9}, {"field": "txt", "max_bytes": 8})
        assert _numbers(made) == [[3], [4, 5, 6, 7], [8]]
        assert _numbers(await _read(rig, {"field": "cls", "min": 2, "max": 10.5})) == [
            [2, 3],
            [4, 5, 6, 7],
            [8, 9, 10],
        ]


async def test_by_an_images_header(tmp_path: Path) -> None:
    """Height and width come from the header, before anything is decoded."""
    async with feeding(tmp_path) as rig:
        sizes = [(8, 20), (9, 20), (9, 21), (30, 30)]
        pictures = [cv2.imencode(".png", np.zeros((*size, 3), np.uint8))[1].tobytes() for size in sizes]
        rig.store.shard(0, [{"png": picture, "cls": str(n).encode()} for n, picture in enumerate(pictures)])
        assert _numbers(await _read(rig, {"field": "png", "min_height": 9, "max_width": 21})) == [[1, 2]]
        assert _numbers(await _read(rig, {"field": "png", "max_height": 9, "min_width": 21})) == [[2]]


async def test_what_cannot_be_judged_is_bad(tmp_path: Path) -> None:
    """A sample without the field, or with one that cannot be read, counts as bad and says why."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(
            0,
            [{"cls": b"0", "score": b"1"}, {"cls": b"1"}, {"cls": b"2", "score": b"x"}, {"cls": b"3", "score": b"nan"}],
        )
        above = {"field": "score", "min": 0}
        (batch,) = await _read(rig, above, bad_samples_max=2)
        assert (batch.ints(), batch.ready.bad_samples, batch.ready.filtered) == ([0], 2, 1)
        (full,) = await _read(rig, above, bad_samples="replace", bad_samples_max=2)
        assert (full.ints(), list(full.ready.again)) == ([0, 0, 0], [0, 1, 1])
        with pytest.raises(BadSample, match=r"'00001', field 'score': .*lacks this field"):
            await _read(rig, above)
        with pytest.raises(BadSample, match=r"'00002', field 'score': a filter needs a number"):
            await _read(rig, above, bad_samples_max=1)


async def test_stored_numbers(tmp_path: Path) -> None:
    """Numbers that a format stores as such, in shards of several kinds, are compared alike."""
    async with feeding(tmp_path) as rig:
        columns = {"cls": "int", "score": "float64"}
        samples = [{"cls": np.int64(n).tobytes(), "score": np.float64(n / 4).tobytes()} for n in range(6)]
        rig.store.put("train/00.mds", mds(columns, samples))
        assert _numbers(await _read(rig, {"field": "score", "min": 0.25, "max": 0.75}, batch_size=6)) == [[1, 2, 3]]
        assert _numbers(await _read(rig, {"field": "cls", "min": 4}, batch_size=6)) == [[4, 5]]


async def test_columns_that_are_not_decoded(tmp_path: Path) -> None:
    """Of columnar objects the columns that samples are filtered and put together by are read as well."""
    async with feeding(tmp_path) as rig:
        table = pa.table(
            {"cls": range(12), "score": [n / 10 for n in range(12)], "txt": ["t" * (n % 4) for n in range(12)]}
        )
        sink = io.BytesIO()
        pq.write_table(table, sink)
        rig.store.put("train/00.parquet", sink.getvalue())
        wanted = ({"field": "score", "min": 0.2}, {"field": "txt", "min_bytes": 1, "max_bytes": 2})
        made = await _read(rig, *wanted, shuffle=True, bucket_by="txt", batch_size=3)
        assert sorted(n for batch in _numbers(made) for n in batch) == [2, 5, 6, 9, 10]
        assert [len({n % 4 for n in batch}) <= 1 for batch in _numbers(made)] == [True] * 4


async def test_filters_decide_what_a_run_is(tmp_path: Path) -> None:
    """Other filters, another fingerprint; the order they are written in is none."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        one, other = '{"field": "txt", "min_bytes": 1}', '{"min": 0, "field": "cls"}'
        marks = [(await rig.open(filters=filters)).info.fingerprint for filters in ((), (one,), (one, other))]
        assert len(set(marks)) == 3
        assert (await rig.open(filters=(other, one))).info.fingerprint == marks[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "field"),
        ('{"field": "txt"}', "a condition"),
        ('{"field": "txt", "min_bytes": "a"}', "int"),
        ('{"field": "txt", "min_bytes": 3, "max_bytes": 2}', "not above"),
        ('{"field": "txt", "colour": 2}', "colour"),
        ('{"field": "nothing", "min_bytes": 2}', "txt"),
        ("[1]", "object"),
        ("{", "filter"),
    ],
)
async def test_what_makes_no_filter_is_said(tmp_path: Path, text: str, problem: str) -> None:
    """When the session is opened, with what is known."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        with pytest.raises(BadRecipe, match=problem):
            await rig.open(filters=(text,))


async def test_one_schema_in_tfrecords(tmp_path: Path) -> None:
    """A record without the field, with another type of it, or another number of values is a bad sample."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/00.tfrecord", tfrecord(example(cls=[0], v=[1.0, 2.0]), example(cls=[1], v=[1.0, 2.0])))
        rig.store.put(
            "train/01.tfrecord",
            tfrecord(
                example(cls=[2]),
                example(cls=[3], v=[1.0, 2.0, 3.0]),
                example(cls=[4], v=[3.0, 4.0]),
            ),
        )
        rig.store.put("train/02.tfrecord", tfrecord(example(cls=[5], v=[1, 2]), example(cls=[6], v=[3, 4])))
        fields = (("cls", "int"), ("v", "tensor:float32:2"))
        made = await _read(rig, fields=fields, bad_samples_max=9)
        assert _numbers(made) == [[0, 1], [4]]
        assert [batch.ready.bad_samples for batch in made] == [2, 2]
        with pytest.raises(BadSample, match=r"02\.tfrecord|expected encoding"):
            await _read(rig, fields=fields, bad_samples_max=3)


async def test_one_schema_in_mds(tmp_path: Path) -> None:
    """A shard with another column type, or without the column, is one of bad samples."""
    async with feeding(tmp_path) as rig:
        label = [{"cls": np.int64(n).tobytes()} for n in range(4)]
        rig.store.put("train/00.mds", mds({"cls": "int"}, label[:2]))
        rig.store.put("train/01.mds", mds({"cls": "float32"}, [{"cls": np.float32(n).tobytes()} for n in range(2)]))
        rig.store.put("train/02.mds", mds({"other": "int"}, [{"other": np.int64(7).tobytes()}]))
        rig.store.put("train/03.mds", mds({"cls": "int"}, label[2:]))
        made = await _read(rig, batch_size=7, bad_samples_max=3)
        assert (_numbers(made), made[0].ready.bad_samples) == ([[0, 1, 2, 3]], 3)
        with pytest.raises(BadSample, match="encoding int64, got float32"):
            await _read(rig, batch_size=7)


async def test_one_schema_in_tars(tmp_path: Path) -> None:
    """A member that is missing, or of another shape or type, makes a bad sample."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(
            0,
            [
                {"cls": b"0", "bin": b"\0" * 8},
                {"cls": b"1"},
                {"cls": b"2", "bin": b"\0" * 4},
                {"cls": b"3.5", "bin": b"\0" * 8},
            ],
        )
        made = await _read(rig, fields=(("cls", "int"), ("bin", "tensor:float32:2")), bad_samples_max=3)
        assert (_numbers(made), made[0].ready.bad_samples) == ([[0]], 3)
