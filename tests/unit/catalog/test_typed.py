"""Columns of text have the same types in every shard of a dataset: the first one's, or what the recipe says."""

from __future__ import annotations

import gzip
import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.catalog.wanted_columns import narrowed
from feedd.conversion import text_of
from feedd.errors import BadRecipe, BadRequest, BadSample, BadShard
from feedd.metrics import SOURCE_BYTES
from feedd.recipe.recipe import parse_field
from feedd.sessions.column_types import type_of, typed
from feedd.values import Cursor
from tests.fakes.feeding import Taken, batches, feeding, take
from tests.fakes.recordio import image_record, recordio

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feeding import Feeding

INTS = b"a,n\nx,1\ny,2\n"
FLOATS = b"a,n\nz,1.5\nw,2.5\n"


def floats(made: list[Taken], name: str, dtype: str = "float32") -> list[float]:
    """Return a DENSE field of scalars."""
    found: list[float] = []
    for one in made:
        at = next(n for n, spec in enumerate(one.specs) if spec.name == name)
        region = one.ready.regions[at]
        count = region.values_bytes // np.dtype(dtype).itemsize
        found += np.frombuffer(one.data, dtype, count, region.values_at).tolist()
    return found


def bad(made: list[Taken]) -> int:
    """Return how many samples were bad."""
    return sum(one.ready.bad_samples for one in made)


async def test_a_named_type_is_read_in_every_shard(tmp_path: Path) -> None:
    """Whole numbers in the first shard, others in the second: with a field of floats no row is bad."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", INTS)
        rig.store.put("train/1.csv", FLOATS)
        made = await batches(await rig.open(fields=(("n", "float"),)))
        assert (floats(made, "n"), bad(made)) == ([1.0, 2.0, 1.5, 2.5], 0)
        rig.store.put("train/0.csv", FLOATS)
        rig.store.put("train/1.csv", INTS)
        made = await batches(await rig.open(urls=("s3://memory/train",), fields=(("n", "float"),)))
        assert (floats(made, "n"), bad(made)) == ([1.5, 2.5, 1.0, 2.0], 0)


async def test_the_first_shard_tells_the_sign_between_values(tmp_path: Path) -> None:
    """In a later shard a row may look as if another one were it; named, it is what the name says."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", b"1;x\n2;y\n")
        rig.store.put("train/1.csv", b"3;a, b\n")
        for url in ("s3://memory/train/", "csv-semicolon+s3://memory/train/"):
            made = await batches(await rig.open(urls=(url,), fields=(("0", "int"), ("1", "str"))))
            assert [one for taken in made for one in taken.ints("0")] == [1, 2, 3]
            assert [text for one in made for text in one.texts("1")] == [b"x", b"y", b"a, b"]
        with pytest.raises(BadRequest, match="read by default, got 1;x"):
            await rig.open(urls=("csv-pipe+s3://memory/train/",), fields=())


async def test_a_dtype_is_read_as_that(tmp_path: Path) -> None:
    """``tensor:float32:1`` of whole numbers; ``str`` of what looks like numbers keeps its zeros."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.tsv", b"zip\tn\n007\t1\n")
        rig.store.put("train/1.tsv", b"zip\tn\nA1\t2.25\n")
        made = await batches(await rig.open(fields=(("zip", "str"), ("n", "tensor:float32:1"))))
        assert (floats(made, "n"), bad(made)) == ([1.0, 2.25], 0)
        assert [text for one in made for text in one.texts("zip")] == [b"007", b"A1"]


async def test_classes_are_text_in_every_shard(tmp_path: Path) -> None:
    """Names that look like numbers in the first shard are names; one that is none of the classes is a bad sample."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", b"a,kind\nx,007\ny,1\n")
        rig.store.put("train/1.csv", b"a,kind\nz,cat\nw,dog\n")
        recipe = '{"decode": "int", "classes": ["cat", "1", "007"]}'
        session = await rig.open(fields=(("kind", recipe),), bad_samples="skip", bad_samples_max=9)
        made = await batches(session)
        assert ([one for taken in made for one in taken.ints("kind")], bad(made)) == ([2, 1, 0], 1)
        assert session.info.classes == {"kind": ("cat", "1", "007")}
        with pytest.raises(BadRecipe, match="class names for 'int', got int64"):
            await rig.open(fields=(("a", '{"decode": "int", "classes": ["x"]}'),), urls=(_numbers(rig),))


def _numbers(rig: Feeding) -> str:
    """Store a table whose column is numbers; return its URL."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), sink)
    return rig.store.put("n/0.parquet", sink.getvalue()).url


async def test_the_first_shard_tells_the_types_of_all(tmp_path: Path) -> None:
    """Without fields: whole numbers after others are read as the others are; packed or not."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv.gz", gzip.compress(FLOATS))
        rig.store.put("train/1.csv", INTS)
        made = await batches(await rig.open(fields=()))
        assert (floats(made, "n"), bad(made)) == ([1.5, 2.5, 1.0, 2.0], 0)


async def test_a_value_of_another_type_is_named(tmp_path: Path) -> None:
    """Object, column and value, and what to do."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", INTS)
        rig.store.put("train/1.csv", b"a,n\n" + b"z,7\n" * 3 + b"w,2.5\n")
        session = await rig.open(fields=(("n", "int"),), window_shards=1, batch_size=2)
        first = await take(session, Cursor())
        assert isinstance(first, Taken)
        assert first.ints("n") == [1, 2]
        second = await take(session, Cursor(0, 1))
        assert isinstance(second, Taken)
        assert second.ints("n") == [7, 7]
        with pytest.raises(
            BadSample, match=r"00000003.* expected int64 in column 'n', .*got invalid value '2.5'"
        ) as told:
            await take(session, Cursor(0, 2))
        assert told.value.object == "s3://memory/train/1.csv"
        assert 'use "float"' in told.value.message
        session = await rig.open(fields=(("n", "int"),), batch_size=9, bad_samples_max=1)
        (made,) = await batches(session)
        assert (made.ints("n"), bad([made])) == ([1, 2, 7, 7, 7], 1)


async def test_values_most_of_which_are_of_another_type_are_an_error(tmp_path: Path) -> None:
    """It is another column, and is told as that, and what to do."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", INTS)
        rig.store.put("train/1.csv", b"a,n\n" + b"z,7\n" * 3 + b"w,2.5\n" * 30)
        session = await rig.open(fields=(("n", "int"),), window_shards=1, batch_size=2, bad_samples_max=99)
        with pytest.raises(BadShard, match=r"expected int64 in column 'n', .*got invalid value '2.5' in row 5") as told:
            await take(session, Cursor(0, 1))
        assert told.value.object == "s3://memory/train/1.csv"
        assert '"float"' in told.value.hint


async def test_columns_without_values_take_the_first_type_there_is(tmp_path: Path) -> None:
    """Of the next shard that has values; where none has, the recipe must say it."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.csv", b"a,n,m\nx,,\n")
        rig.store.put("train/1.csv", b"a,n,m\nx,2.5,\n")
        rig.store.put("train/2.csv", b"a,n,m\nx,3,\n")
        made = await batches(await rig.open(fields=(("n", "array"),), bad_samples_max=9))
        assert (floats(made, "n", "float64"), bad(made)) == ([2.5, 3.0], 1)
        made = await batches(await rig.open(fields=(("n", "float"), ("m", "float")), bad_samples_max=9))
        assert bad(made) == 3
        with pytest.raises(BadRecipe, match="column 'm' has no values in the first 3 shards") as told:
            await rig.open(fields=(("m", "array"),))
        assert '"float"' in told.value.hint
        made = await batches(await rig.open(fields=(), bad_samples_max=9))
        assert [text for one in made for text in one.texts("m")] == [b""] * 2


@pytest.mark.slow
async def test_only_the_start_of_a_large_shard_is_fetched_to_tell_types(tmp_path: Path) -> None:
    """8 MiB of it; a node that does not read the first shard does not fetch it."""
    rows = b"x,1\n" * (9 << 18)
    async with feeding(tmp_path, cache_bytes=512 << 20) as rig:
        first = rig.store.put("train/0.csv", b"a,n\n" + rows)
        rig.store.put("train/1.csv", INTS)
        listing = await rig.pipeline.catalog.listing(("s3://memory/train/",), lambda _: False)
        assert listing.refs[0].size_bytes == first.size_bytes > 9 << 20
        recipe = (parse_field("n", "int"),)
        view = await typed(rig.pipeline.cache, narrowed(listing.as_listed, [recipe]), [recipe])
        assert {text_of(ref.conversion) for ref in view.refs} == {'csv:{"columns":[["n"]],"types":{"n":"int64"}}'}
        assert fetched_bytes(rig) == 8 << 20


@pytest.mark.parametrize("name", ["csv", "csv.gz", "tsv.gz", "jsonl.gz"])
async def test_what_tells_the_types_is_fetched_once(tmp_path: Path, name: str) -> None:
    """An object that is read whole for its types lies in the cache when it is made a shard, packed or not."""
    text = INTS.replace(b",", b"\t") if name == "tsv.gz" else INTS if name != "jsonl.gz" else b'{"n": 1}\n{"n": 2}\n'
    async with feeding(tmp_path) as rig:
        put = [rig.store.put(f"train/{n}.{name}", gzip.compress(text) if "gz" in name else text) for n in range(2)]
        for _ in range(2):
            made = await batches(await rig.open(fields=()))
            assert sum(one.ready.rows for one in made) == 4
            assert fetched_bytes(rig) == sum(ref.size_bytes for ref in put)


async def test_what_the_cache_has_no_room_for_is_read_all_the_same(tmp_path: Path) -> None:
    """An object larger than the cache, of which the wanted columns are not: it is fetched twice, and read."""
    rows = b"a,n\n" + (b"x" * 100 + b",1\n") * 40_000
    async with feeding(tmp_path, cache_bytes=3 << 20) as rig:
        ref = rig.store.put("train/0.csv", rows)
        assert ref.size_bytes > 3 << 20
        made = await batches(await rig.open(fields=(("n", "int"),), batch_size=1 << 14))
        assert sum(one.ready.rows for one in made) == 40_000
        assert fetched_bytes(rig) == 2 * ref.size_bytes


def fetched_bytes(rig: Feeding) -> int:
    """Return what was read of the store."""
    return int(rig.recorder.total(SOURCE_BYTES))


@pytest.mark.slow
async def test_very_many_columns_are_typed(tmp_path: Path) -> None:
    """Their types are part of every entry's identity: the commonest is told once."""
    names = [f"column{n}" for n in range(600)]
    async with feeding(tmp_path) as rig:
        for shard, value in enumerate(("0.5", "1")):
            text = ",".join(names) + ",label\n" + ",".join([value] * 600) + ",7\n"
            rig.store.put(f"train/{shard}.csv", text.encode())
        session = await rig.open(fields=(), batch_size=2)
        made = await batches(session)
        assert (floats(made, "column599"), bad(made)) == ([0.5, 1.0], 0)


async def test_labels_of_recordio_are_read_however_many_a_shard_has(tmp_path: Path) -> None:
    """A shard where one sample has two labels stores all otherwise than one where each has one: no good row is bad."""
    async with feeding(tmp_path) as rig:
        image = b"\xff\xd8\xff" + bytes(20)
        rig.store.put("train/0.rec", recordio(image_record(image, [1.0], 0)))
        rig.store.put("train/1.rec", recordio(image_record(image, [2.0], 1), image_record(image, [3.0, 4.0], 2)))
        made = await batches(await rig.open(fields=(("label", "float"),), bad_samples_max=9))
        assert (floats(made, "label"), bad(made)) == ([1.0, 2.0], 1)
        turned = ("s3://memory/train/1.rec", "s3://memory/train/0.rec")
        assert bad(await batches(await rig.open(urls=turned, fields=(("label", "array"),)))) == 0


def test_which_type_a_column_is_read_with() -> None:
    """Text where text is wanted, the dtype that is named, and else what there is."""

    def read(told: str, *texts: str) -> str:
        return type_of(told, [parse_field("a", text) for text in texts])

    assert [read(told, "str") for told in ("int64", "null", "date32[day]")] == ["string"] * 3
    assert [read("int64", one) for one in ("int", "float", "bytes", "array")] == ["int64", "double", "int64", "int64"]
    assert [read("double", one) for one in ("int", "float", "bytes")] == ["double"] * 3
    assert [read("null", one) for one in ("int", "float", "bytes")] == ["int64", "double", "null"]
    assert [read("bool", one) for one in ("int", "float", "str")] == ["bool", "bool", "string"]
    assert read("date32[day]", "int") == "date32[day]"
    assert read("string", "float") == "string"
    assert read("int64", "tensor:float32:1") == "float"
    assert read("int64", "tensor:uint8:1") == "uint8"
    assert read("int64", "float", "int") == "int64"
    assert read("int64", "str", "int") == "int64"
