"""Workers whose calls need more memory than ``decode.memory``: a typed error, and the worker goes on."""

from __future__ import annotations

import gzip
import io
import resource
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedd.errors import BadShard, ResourceExhausted
from feedd.tables.memory import LEAST_BYTES, NO_LIMIT_BYTES, at_most, call_limit, check_memory
from feedd.tables.task import ConvertedShard
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions
from tests.fakes.decoding import decoding
from tests.fakes.made import making
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import shard_file, tar_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB = 1 << 20


def test_the_option_is_named_only_if_it_is_the_limit() -> None:
    """More memory than the option allows is a final error, more than is free is an error that passes."""
    for free_bytes, limit_bytes, error in (
        (NO_LIMIT_BYTES, 300 * MIB, BadShard),
        (300 * MIB, 300 * MIB, BadShard),
        (300 * MIB, 301 * MIB, ResourceExhausted),
        (0, NO_LIMIT_BYTES, ResourceExhausted),
    ):
        with pytest.raises(error) as caught, at_most(free_bytes, "s3://b/shard", limit_bytes):
            np.ones(400 * MIB, np.uint8)
        assert caught.value.object == "s3://b/shard"
        assert ("decode.memory" in caught.value.hint) == (error is BadShard)
        assert ("300MiB" in caught.value.message) == (error is BadShard)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_what_is_known_to_need_more_is_refused_in_advance() -> None:
    """A size that data states is held against the same limit, before memory is taken."""

    class Out:
        at, limit_bytes, extra_bytes, call_bytes = 0, 1 << 40, LEAST_BYTES, LEAST_BYTES

        def write(self, data: object) -> None:
            raise AssertionError(data)

    with pytest.raises(BadShard, match="expected memory for 1GiB of a block") as caught:
        check_memory(1 << 30, Out(), "s3://b/shard", "a block")
    assert "decode.memory" in caught.value.hint


@pytest.mark.parametrize(("object_bytes", "limit_bytes"), [(0, 512 * MIB), (1000, 512 * MIB), (1 << 30, 8 << 30)])
def test_a_large_object_may_take_more(object_bytes: int, limit_bytes: int) -> None:
    """A call may take the option, or eight times the size of its object in the store."""
    assert call_limit(512 * MIB, object_bytes) == limit_bytes
    assert call_limit(0, object_bytes) == NO_LIMIT_BYTES


def _large_value(rows: int) -> bytes:
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (300 * MIB)]))
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": values}), sink, compression="zstd", dictionary_pagesize_limit=400 * MIB)
    return sink.getvalue()


async def test_a_conversion_takes_no_more_than_the_option() -> None:
    """A small object whose values are large is a bad shard, however much memory is free; the worker goes on."""
    options = DecodeOptions(memory_bytes=256 * MIB)
    async with DecodePool(options, TallyRecorder()) as pool:
        pids = pool.worker_pids
        with making(_large_value(2)) as it:
            task = it.task("parquet", "a.parquet", limit_bytes=1 << 40, memory_bytes=64 << 30)
            with pytest.raises(BadShard, match="256MiB of memory") as caught:
                await pool.make(task)
        assert caught.value.object.endswith("a.parquet")
        assert "decode.memory" in caught.value.hint
        with making(b"a,b\n1,2\n") as it:
            assert isinstance(await pool.make(it.task("csv", "a.csv")), ConvertedShard)
        assert pool.worker_pids == pids


async def test_a_table_whose_conversion_tells_its_index_is_limited_too() -> None:
    """An index that comes with the converted table is held against the same limits."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": np.zeros(200_000, np.int8)}), sink)
    async with DecodePool(DecodeOptions(index_bytes=1 * MIB), TallyRecorder()) as pool:
        with making(sink.getvalue()) as it, pytest.raises(BadShard, match="at most 65536 samples") as caught:
            await pool.make(it.task("parquet", "a.parquet"))
    assert "decode.index_size" in caught.value.hint


async def test_a_sample_that_needs_more_is_bad_and_the_worker_goes_on(tmp_path: Path) -> None:
    """An image that a worker has no memory for is a bad sample that names the option; others are decoded."""
    large, small = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (11_500, 11_500)).save(large, "PNG")
    Image.new("RGB", (8, 8)).save(small, "PNG")
    samples = [(f"{number}", {"png": one.getvalue()}) for number, one in enumerate((small, large, small))]
    shard = shard_file(tmp_path / "a.tar", tar_bytes(samples))
    async with decoding([shard], DecodeOptions(memory_bytes=256 * MIB)) as rig:
        pids = rig.pool.worker_pids
        result, rows = await rig.decode({"png": "image:8x8"})
        assert [bad.row for bad in result.bad] == [1]
        assert "decode.memory" in result.bad[0].reason
        assert len(rows["png"]) == 3
        assert rig.pool.worker_pids == pids


@pytest.mark.parametrize(
    ("text", "written_bytes"),
    [
        pytest.param(b"a\n" + b"1\n" * 100_000, 4096, id="numbers"),
        pytest.param(b"a\n" + b"x\nyy\n" * 50_000, 4096, id="texts"),
        pytest.param(b"a,b,c,d\n" + b"x,x,x,x\nyy,yy,yy,yy\n" * 20_000, 40_000 * 2 * 10 + 8192, id="columns"),
    ],
)
async def test_a_table_with_too_many_rows_is_refused_before_it_is_written(text: bytes, written_bytes: int) -> None:
    """A conversion stops at the column with which the index of its table would exceed a limit."""
    async with DecodePool(DecodeOptions(index_bytes=1 * MIB), TallyRecorder()) as pool:
        with making(gzip.compress(text)) as it:
            with pytest.raises(BadShard) as caught:
                await pool.make(it.task("gunzip+csv", "a.csv.gz"))
            assert len(it.written()) <= written_bytes
    assert caught.value.object.endswith("a.csv.gz")
    assert "decode.index_size" in caught.value.hint
