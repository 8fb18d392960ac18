"""Objects whose footer tells the size of their table are converted into the cache entry, without a copy in between."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from feedd.conversion import Conversion
from feedd.metrics import PIPELINE_MADE
from feedd.tables import parquet as parquet_file
from feedd.tables.facts import ConversionLog
from feedd.tables.files import MappedObject
from feedd.tables.parquet import PARQUET_CONVERTER
from feedd.values import ByteRange
from tests.fakes.caches import read
from tests.fakes.files import parquet
from tests.fakes.forms import MadeRig
from tests.fakes.made import made_of, making

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges
    from feedd.values import ObjectRef

_DRAWS = np.random.default_rng(0)
_WHOLE: dict[str, Any] = {
    "n": np.arange(1000),
    "x": _DRAWS.random(1000, np.float32),
    "b": _DRAWS.random(1000) < 0.5,
    "small": np.arange(1000).astype(np.int8),
    "price": pa.array([Decimal("1.5")] * 1000, pa.decimal128(9, 2)),
    "v": pa.array([[1.0, 2.0]] * 1000, pa.list_(pa.float32(), 2)),
    "raw": pa.array([b"abc"] * 1000, pa.binary(3)),
    "few": pa.array(["a", "b"] * 500).dictionary_encode().indices,
}
_MISSING = pa.array([None, *range(999)])
_LARGE = _DRAWS.random(20_000)  # more bytes than are fetched together with the footer
_LARGE_MISSING = pa.array([None, *_LARGE])


def _told_bytes(data: bytes, params: str = "") -> int:
    """Return the size that the footer tells."""
    with making(data) as made:
        footer = ByteRange(len(data) - int.from_bytes(data[-8:-4], "little") - 8, len(data))
        with MappedObject(made.source_fd, len(data), [footer]) as held:
            plan = PARQUET_CONVERTER.wanted_and_plan(held, params)[1]
            return -1 if plan is None else plan.size_bytes


@pytest.mark.parametrize("rows", [0, 1, 1000])
@pytest.mark.parametrize("params", ["", '[["n"],["b"],["x"]]', '[["v"]]', '[["price"]]'])
@pytest.mark.parametrize("unread", [False, True])
def test_the_size_is_told_exactly(rows: int, params: str, *, unread: bool) -> None:
    """Of each kind of fixed width, in several row groups, beside columns that cannot be read."""
    table = pa.table(_WHOLE).slice(0, rows)
    if unread:
        table = table.append_column("map", pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int64())))
    data = parquet(table, row_group_size=300)
    _, made = made_of(f"parquet:{params}" if params else "parquet", "x.parquet", data)
    assert _told_bytes(data, params) == (len(made) if rows else -1)


@pytest.mark.parametrize(
    "column",
    [_MISSING, pa.array(["a"] * 1000), pa.array([[1.0]] * 1000), pa.array([[1, None]] * 1000, pa.list_(pa.int64(), 2))],
    ids=["missing", "text", "lists", "missing inside"],
)
def test_other_sizes_are_not_told(column: pa.Array) -> None:
    """Values that are missing, or differ in size, are known only when they are read."""
    data = parquet(pa.table({"n": np.arange(1000), "other": column}))
    assert _told_bytes(data) == -1
    assert _told_bytes(data, '[["n"]]') > 0
    assert _told_bytes(parquet(pa.table(_WHOLE), write_statistics=False)) == -1


@pytest.fixture
def rig(tmp_path: Path) -> MadeRig:
    """A cache whose shards nobody has made yet."""
    return MadeRig(tmp_path / "cache", made_before=False, facts=ConversionLog(tmp_path / "made"))


def _put(rig: MadeRig, table: pa.Table) -> tuple[ObjectRef, bytes]:
    """Store a file; return its ref, and the table that is made of it."""
    data = parquet(table, row_group_size=3000)
    ref = rig.fetcher.put("a.parquet", data)
    return replace(ref, conversion=Conversion("parquet")), made_of("parquet", "a.parquet", data)[1]


@pytest.mark.parametrize(("told", "part_count"), [(True, 3), (True, 1), (False, 1)])
async def test_a_table_of_known_size_is_made_in_its_entry(
    rig: MadeRig, monkeypatch: pytest.MonkeyPatch, *, told: bool, part_count: int
) -> None:
    """A table of unknown size is made in memory first. The object is fetched once in all cases."""
    if part_count > 1:
        monkeypatch.setattr(parquet_file, "_GROUPS_BYTES", 1)  # else all row groups together make little of a table
    ref, expected = _put(rig, pa.table({"n": _LARGE if told else _LARGE_MISSING}))
    tasks: list[MakeTask] = []
    async with rig.open_made() as cache:
        make = cache._converter.make

        async def noted(task: MakeTask) -> ConvertedShard | MissingRanges:
            tasks.append(task)
            return await make(task)

        cache._converter.make = noted
        with await cache.acquire([ref]) as pins:
            assert read(pins.files[0]) == expected
            assert pins.files[0].format == "table"
        assert (cache.index_of(ref) is not None) == told
        assert tasks[-1].entry_bytes == (len(expected) if told else -1)
        cache.prefetch([ref], "me")
        cache.prefetch([], "me")
    assert rig.recorder.total(PIPELINE_MADE) == 1
    assert rig.fetcher.calls == {"a.parquet": 1 + part_count}  # the footer, and the columns


async def test_a_footer_that_tells_a_wrong_size_costs_one_try(rig: MadeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is then converted in memory, whoever asks, and no reader sees an error."""
    ref, expected = _put(rig, pa.table({"n": _LARGE_MISSING}))
    monkeypatch.setattr(parquet_file, "_has_all", lambda _: True)
    async with rig.open_made() as cache:
        with await cache.acquire([ref]) as pins:
            assert read(pins.files[0]) == expected
        assert rig.recorder.total(PIPELINE_MADE) == 1
        await cache.discard(ref)
        with await cache.acquire([ref]) as pins:
            assert read(pins.files[0]) == expected
    assert rig.recorder.total(PIPELINE_MADE) == 2


async def test_what_was_fetched_for_a_dropped_shard_is_freed(rig: MadeRig) -> None:
    """Nobody wants the shard any more before it has an entry."""
    ref, expected = _put(rig, pa.table({"n": _LARGE}))
    async with rig.open_made() as cache:
        async with cache.sized(ref) as shard:
            assert shard.size_bytes == len(expected)
            assert len(cache._converter.fresh) == 1
        assert not cache._converter.fresh
