"""What only data can tell is a fact of the dataset: its first shard with samples says it, whoever reads what first."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from feedd.catalog.stages import PipelineOptions
from feedd.conversion import text_of
from feedd.errors import BadRecipe, BadSample, Unsupported
from feedd.tables.registry import HEAD_BYTES
from feedd.units import MIB
from feedd.values import Cursor, Topology
from tests.fakes.feeding import batches, feeding
from tests.fakes.files import npy, parquet_of
from tests.fakes.tars import jpeg, tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.catalog.test_empty_first_shards import hdf5, npz, values
from tests.unit.formats.test_mds import mds
from tests.unit.formats.test_strided import safetensors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from feedd.range_sink import RangeSink
    from feedd.sessions.session import Session
    from feedd.shard_index import ShardIndex
    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges
    from feedd.values import ByteRange, ObjectRef, ReadProgress, ShardFile
    from tests.fakes.feeding import Feeding

SKIP: dict[str, Any] = {"bad_samples": "skip", "bad_samples_max": 99, "window_shards": 1, "batch_size": 2}
POLICIES = ("skip", "replace", "quarantine")


def arrow(**columns: Any) -> bytes:
    """Return an Arrow file."""
    sink, table = io.BytesIO(), pa.table(columns)
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def node(rank: int, count: int) -> Topology:
    """Return the place of a node's only rank."""
    return Topology(count, rank, 1, 0, count, rank)


def bad(made: list[Any]) -> int:
    """Return how many samples were bad."""
    return sum(one.ready.bad_samples for one in made)


async def epoch(rig: Feeding, number: int = 0, **asked: Any) -> tuple[list[Any], int]:
    """Return what an epoch delivers of the first field, sorted, and how many samples were bad, opened for it alone."""
    session = await rig.open(**(SKIP | asked | {"epoch": number}))
    made = await batches(session, Cursor(number))
    name = session.info.specs[0].name
    await rig.close(session)
    return sorted(values(made, name)), bad(made)


def parquets(rig: Feeding) -> None:
    """Store six shards of whole numbers, but for one."""
    for shard in range(6):
        kind = pa.float64() if shard == 3 else pa.int64()
        rig.store.put(f"train/{shard}.parquet", parquet_of(a=pa.array([shard * 10, shard * 10 + 1], kind)))


def arrays(rig: Feeding) -> None:
    """Store six shards of arrays of one type, but for the first."""
    for shard in range(6):
        kind = np.float32 if shard else np.float64
        rig.store.shard(shard, [{"npy": npy(np.full(1, shard * 10 + n, kind))} for n in range(2)])


def records(rig: Feeding) -> None:
    """Store six shards of records, the last of other features."""
    for shard in range(6):
        numbers = [shard * 10 + n for n in range(2)]
        made = (example(a=[float(n)], b=[1]) if shard == 5 else example(a=[n]) for n in numbers)
        rig.store.put(f"train/{shard}.tfrecord", tfrecord(*made))


CASES: dict[str, tuple[Callable[[Feeding], None], tuple[tuple[str, str], ...], int]] = {
    "parquet": (parquets, (("a", "float"),), 2),
    "parquet, nothing named": (parquets, (), 2),
    "npy": (arrays, (("npy", "npy"),), 10),
    "npy, nothing named": (arrays, (), 10),
    "tfrecord": (records, (("a", "array"),), 2),
    "tfrecord, nothing named": (records, (), 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
async def test_orders_and_nodes_deliver_the_same(tmp_path: Path, name: str) -> None:
    """Whatever the seed, the epoch and the number of nodes: the same samples are good."""
    store, fields, count = CASES[name]
    async with feeding(tmp_path) as rig:
        store(rig)
        whole, wrong = await epoch(rig, fields=fields)
        assert (len(whole), wrong) == (12 - count, count)
        for seed in range(3):
            for number in (0, 1):
                assert await epoch(rig, number, fields=fields, shuffle=True, seed=seed) == (whole, wrong)
        each = [await epoch(rig, fields=fields, topology=node(rank, 6)) for rank in range(6)]
        assert sorted(one for found, _ in each for one in found) == whole
        assert sum(count for _, count in each) == wrong


def noted(rig: Feeding) -> list[tuple[str, int]]:
    """Return what is read from here on: keys, and how many bytes of each."""
    spans: list[tuple[str, int]] = []
    read = rig.store.read_into

    async def read_into(ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None) -> None:
        spans.append((ref.key, span.size_bytes))
        await read(ref, span, sink, progress)

    rig.store.read_into = read_into  # type: ignore[method-assign]  # to see what is read
    return spans


def noted_tasks(rig: Feeding) -> tuple[list[MakeTask], list[str]]:
    """Return what workers are asked for from here on: conversions, and keys of shards to index."""
    made: list[MakeTask] = []
    indexed: list[str] = []
    converter, index = rig.pipeline.cache._converter, rig.pool.index
    make = converter.make

    def noted_make(task: MakeTask) -> Awaitable[ConvertedShard | MissingRanges]:
        made.append(task)
        return make(task)

    async def noted_index(file: ShardFile, format_name: str, object_bytes: int = 0) -> ShardIndex:
        indexed.append(file.ref.key)
        return await index(file, format_name, object_bytes)

    converter.make = noted_make
    rig.pool.index = noted_index  # type: ignore[method-assign]  # to see what is asked for
    return made, indexed


async def _specs(rig: Feeding, fields: tuple[tuple[str, str], ...], rank: int, count: int = 4) -> Session:
    return await rig.open(**SKIP, fields=fields, topology=node(rank, count))


async def test_a_large_first_shard_is_not_fetched_to_tell(tmp_path: Path) -> None:
    """By a node that does not read it: some MiB are, once, and nothing where the recipe and the format tell all."""
    async with feeding(tmp_path, cache_bytes=512 << 20) as rig:
        array = np.zeros(1 << 18, np.float32)
        big = tar_bytes([(f"{n:03}", {"npy": npy(array), "cls": b"1"}) for n in range(12)])
        assert len(big) > 12 * MIB
        rig.store.put("train/0.tar", big)
        for shard in (1, 2, 3):
            rig.store.shard(shard, [{"npy": npy(np.zeros(3, np.int64)), "cls": b"1"}])
        spans = noted(rig)
        await _specs(rig, (("cls", "int"),), 3)
        assert not [one for one in spans if one[0] == "train/0.tar"]
        pinned = await _specs(rig, (("npy", "npy"),), 3)
        assert (pinned.info.specs[0].dtype, pinned.info.specs[0].ndim) == ("float32", 1)
        plain = await _specs(rig, (), 2)
        assert {spec.name for spec in plain.info.specs} == {"npy", "cls"}
        assert sum(size for key, size in spans if key == "train/0.tar") == 4 * MIB
        made = await batches(pinned)
        assert bad(made) == 1


async def test_a_node_that_reads_the_first_file_of_columns_reads_its_footer_once(tmp_path: Path) -> None:
    """Its columns are told by the conversion, and its index too: no worker is asked for either."""
    large = [np.random.default_rng(row).bytes(1 << 16) for row in range(128)]
    async with feeding(tmp_path, cache_bytes=512 << 20) as rig:
        first = rig.store.put("train/0.parquet", parquet_of(a=np.arange(len(large)), x=large))
        assert first.size_bytes > HEAD_BYTES[0]
        made, indexed = noted_tasks(rig)
        spans = noted(rig)
        session = await rig.open(fields=(("a", "array"),), batch_size=32)
        assert [spec.dtype for spec in session.info.specs] == ["int64"]
        assert len(await batches(session)) == 4
        assert [task.conversion.params for task in made if task.spans] == ['[["a"]]'] * 2
        assert len(spans) == len(set(spans))
        assert indexed == []


async def test_an_index_that_was_told_and_lost_is_read(tmp_path: Path) -> None:
    """As after a start with a full cache: batches are the same."""
    async with feeding(tmp_path) as rig:
        for shard in range(3):
            rig.store.put(f"train/{shard}.parquet", parquet_of(a=np.arange(10) + 10 * shard))
        _, indexed = noted_tasks(rig)
        session = await rig.open(fields=(("a", "array"),))
        expected = [one.ints("a") for one in await batches(session)]
        assert list(itertools.chain.from_iterable(expected)) == list(range(30))
        assert indexed == []
        rig.pipeline.cache._converter.indexes.clear()
        rig.pipeline.catalog.readings._cached.clear()
        session = await rig.open(fields=(("a", "array"),))
        assert [one.ints("a") for one in await batches(session)] == expected
        assert sorted(indexed) == [f"train/{shard}.parquet" for shard in range(3)]


@pytest.mark.slow
async def test_a_large_file_of_columns_is_not_fetched_to_tell(tmp_path: Path) -> None:
    """Of Parquet the footer, of Arrow the start, of CSV some MiB; arrays in it are told by their column alone."""
    wide = {
        "n": np.arange(10),
        "a": [npy(np.zeros(2))] * 10,
        "raw": [np.random.default_rng(n).bytes(MIB) for n in range(10)],
    }
    for name, data, most in (
        ("parquet", parquet_of(**wide), 65 << 10),
        ("arrow", arrow(**wide), MIB),
        ("csv", b"n,t\n" + (b"1," + b"x" * 1000 + b"\n") * 10_000, 8 * MIB),
    ):
        async with feeding(tmp_path / name, cache_bytes=512 << 20) as rig:
            first = rig.store.put(f"train/0.{name}", data)
            small = b"n,t\n1,y\n" if name == "csv" else (parquet_of if name == "parquet" else arrow)(n=np.arange(3))
            rig.store.put(f"train/1.{name}", small)
            assert first.size_bytes > 8 * MIB
            spans = noted(rig)
            session = await _specs(rig, (("n", "int"),), 1, 2)
            assert 0 < sum(size for key, size in spans if "/0." in key) <= most, name
            assert bad(await batches(session)) == 0
            if name != "csv":
                spans.clear()
                pinned = await _specs(rig, (("a", "npy"),), 1, 2)
                assert pinned.info.specs[0].dtype == "float64"
                assert 0 < sum(size for key, size in spans if "/0." in key) < 2 * MIB or name == "arrow"


@pytest.mark.slow
async def test_images_made_ready_change_nothing(tmp_path: Path) -> None:
    """A large first shard whose images are to be made ready is not made to tell: its first samples are read as is."""
    image = jpeg(np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8), 95)
    shards = [
        [{"jpg": image, "npy": npy(np.full(2, s, np.int16)), "cls": b"1"} for _ in range(n)]
        for s, n in ((0, 80), (1, 3))
    ]
    async with feeding(tmp_path, cache_bytes=900 << 20, options=PipelineOptions(ready_bytes=64 * MIB)) as rig:
        for number, samples in enumerate(shards):
            assert rig.store.shard(number, samples).size_bytes > 4 * MIB or number
        for fields in ((("jpg", "image:16x16"), ("npy", "npy")), (("jpeg;jpg", "image:16x16"), ("cls", "int"))):
            for rank in (0, 1):
                session = await rig.open(**SKIP, fields=fields, decoded_cache=True, topology=node(rank, 2))
                assert text_of(session._parts.view.refs[0].conversion).startswith("rows:")
                made = await batches(session)
                assert (sum(one.ready.rows for one in made), bad(made)) == (len(shards[rank]), 0)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_first_array_that_can_be_read_tells(tmp_path: Path, policy: str) -> None:
    """A bad first one is a bad sample, and no end of the open; many of them in the first shard, too."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"npy": b"broken"}, {"npy": npy(np.zeros(2, np.int16))}])
        rig.store.shard(1, [{"npy": npy(np.zeros(2, np.int16))}])
        session = await rig.open(fields=(("npy", "npy"),), bad_samples=policy, bad_samples_max=9)
        assert session.info.specs[0].dtype == "int16"
        assert bad(await batches(session)) == 1
        rig.store.shard(0, [{"npy": b"broken"}] * 70)
        urls = ("s3://memory/train",)
        session = await rig.open(urls=urls, fields=(("npy", "npy"),), bad_samples=policy, bad_samples_max=99)
        assert session.info.specs[0].dtype == "int16"


@pytest.mark.parametrize("policy", ["error", *POLICIES])
async def test_arrays_that_cannot_be_read_are_named(tmp_path: Path, policy: str) -> None:
    """Object, key, number, field, and what to do: of the first one, where it is an error and where all are bad."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"npy": b"broken"}, {"npy": npy(np.zeros(2)) if policy == "error" else b"broken"}])
        for most in (0, 9):
            with pytest.raises(
                BadSample, match=r"sample '00000' \(number 0\), field 'npy': expected a .npy array"
            ) as told:
                await rig.open(fields=(("npy", "npy"),), bad_samples=policy, bad_samples_max=most)
            assert told.value.object == "s3://memory/train/00.tar"
            assert "npy:float32:3,4" in told.value.hint


LACKING: dict[str, tuple[str, bytes, bytes]] = {
    "parquet": (".parquet", parquet_of(a=[1, 2], b=[3, 4]), parquet_of(b=[5, 6, 7])),
    "parquet, another type": (".parquet", parquet_of(a=[1, 2]), parquet_of(a=["x", "y", "z"])),
    "parquet, no field": (".parquet", parquet_of(a=[1, 2]), parquet_of(a=[[["x"]], [["y"]], [["z"]]])),
    "arrow": (".arrow", arrow(a=[1, 2]), arrow(b=[5, 6, 7])),
    "csv": (".csv", b"a,b\n1,2\n3,4\n", b"b\n5\n6\n7\n"),
    "npz": (".npz", npz([1, 2]), npz([5, 6, 7], "b")),
    "hdf5": (".h5", hdf5([1, 2]), hdf5([5, 6, 7], "b")),
    "tfrecord": (".tfrecord", tfrecord(example(a=[1]), example(a=[2])), tfrecord(*[example(b=[5])] * 3)),
    "mds": (
        ".mds",
        mds({"a": "int"}, [{"a": bytes(8)}] * 2),
        mds({"b": "int"}, [{"b": bytes(8)}] * 3),
    ),
    "safetensors": (".safetensors", safetensors({"a": np.arange(2)}), safetensors({"b": np.arange(3)})),
    "tar": (".tar", tar_bytes([("x", {"a": b"1"}), ("y", {"a": b"2"})]), tar_bytes([(n, {"b": b"1"}) for n in "uvw"])),
}


@pytest.mark.parametrize("name", LACKING)
async def test_a_later_shard_without_a_field_is_bad_samples(tmp_path: Path, name: str) -> None:
    """By policy, counted, and in their places: the samples behind them are where they were."""
    ending, full, without = LACKING[name]
    async with feeding(tmp_path) as rig:
        for shard, data in enumerate((full, without, full)):
            rig.store.put(f"train/{shard}{ending}", data)
        asked = SKIP | {"fields": (("a", "int"),), "batch_size": 1}
        for turn in ({}, {"shuffle": True, "seed": 1}, {"shuffle": True, "seed": 2}):
            made = await batches(await rig.open(**asked | turn))
            assert ([bad([one]) for one in made].count(1), len(made)) == (3, 7)
        plain = await batches(await rig.open(**asked))
        assert [bad([one]) for one in plain] == [0, 0, 1, 1, 1, 0, 0]
        with pytest.raises(BadSample, match="field 'a': expected") as told:
            await batches(await rig.open(**asked | {"bad_samples": "error", "bad_samples_max": 0}))
        assert told.value.object == f"s3://memory/train/1{ending}"


@pytest.mark.parametrize("name", LACKING)
async def test_a_field_that_the_first_shards_lack_is_told_by_the_next(tmp_path: Path, name: str) -> None:
    """On whichever node: those that have it are good; one that none has is refused, with what there is."""
    ending, full, without = LACKING[name]
    async with feeding(tmp_path) as rig:
        for shard, data in enumerate((without, without, full, full)):
            rig.store.put(f"train/{shard}{ending}", data)
        if "," in name:  # the first shard has it as something else: that is what the recipe cannot take
            return
        for count in (1, 4):
            made = [
                await batches(await rig.open(**SKIP, fields=(("a", "int"),), topology=node(rank, count)))
                for rank in range(count)
            ]
            assert sum(bad(one) for one in made) == 6
            assert sum(one.ready.rows for each in made for one in each) == 4
        for rank in range(4):
            with pytest.raises(BadRecipe, match="got other") as told:
                await rig.open(**SKIP, fields=(("other", "int"),), topology=node(rank, 4))
            assert "b" in f"{told.value.message} {told.value.hint}"


async def test_what_the_first_shard_has_and_no_codec_can_take_is_refused(tmp_path: Path) -> None:
    """At open: a column that is no field, and one of another type than the recipe's."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.parquet", parquet_of(m=[[["x"]]], s=["x"], n=[1]))
        with pytest.raises(Unsupported, match=r"expected a column of numbers, text or bytes, .* got m"):
            await rig.open(**SKIP, fields=(("m", "array"),))
        with pytest.raises(BadRecipe, match="expected numbers for 'array'"):
            await rig.open(**SKIP, fields=(("s", "array"),))
        with pytest.raises(BadRecipe, match="got q"):
            await rig.open(**SKIP, fields=(("n", "int"),), filters=('{"field":"q","min":0}',))
