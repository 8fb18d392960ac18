"""Large objects in spans: the samples of whole objects, through a cache that is smaller than the object."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd.catalog.stages import PipelineOptions
from feedd.errors import BadShard, FeeddError, ObjectChanged
from feedd.open_spec import SourceSpec
from feedd.units import KIB
from feedd.values import Cursor, EpochEnd, Produced, Topology
from tests.fakes.feeding import ROOT, URL, Feeding, batches, feeding
from tests.fakes.files import npy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from feedd.range_sink import RangeSink
    from feedd.sessions.session import Session
    from feedd.values import ByteRange, ObjectRef, ReadProgress
    from tests.fakes.memory_store import MemoryStore

WINDOW = 65
SPAN = 4 * KIB
FIELDS = (("tokens", f"tokens:uint16:{WINDOW}"),)
TOKENS = np.random.default_rng(3).integers(0, 1 << 16, 30_000).astype(np.uint16)
WINDOWS = [TOKENS[at : at + WINDOW].tolist() for at in range(0, len(TOKENS) - WINDOW + 1, WINDOW - 1)]


class Reads:
    """Notes the ranges that a store is asked for."""

    def __init__(self, store: MemoryStore, delay_s: float = 0.0) -> None:
        self.spans: list[ByteRange] = []
        self._delay_s = delay_s
        self._read_into = store.read_into
        store.read_into = self.read_into  # type: ignore[method-assign]  # a wrapper

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        self.spans.append(span)
        await asyncio.sleep(self._delay_s)
        await self._read_into(ref, span, sink, progress)


@asynccontextmanager
async def reading(directory: Path, *, span_bytes: int = SPAN, cache_bytes: int = 64 * KIB) -> AsyncIterator[Feeding]:
    """Open a pipeline with small spans and a cache that holds a few of them."""
    async with feeding(directory, cache_bytes=cache_bytes, options=PipelineOptions(span_bytes=span_bytes)) as rig:
        yield rig


async def rows(session: Session, field: str = "tokens") -> list[Any]:
    """Return all rows of an epoch."""
    return [row for batch in await batches(session) for row in batch.rows(field)]


async def test_a_file_larger_than_the_cache(tmp_path: Path) -> None:
    """Every window comes once, in order, with its number in the file; every byte is fetched once."""
    async with reading(tmp_path, cache_bytes=40 * KIB) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        reads = Reads(rig.store)
        session = await rig.open(fields=FIELDS, keys=True, uneven="allow")
        assert session.info.steps == -(-len(WINDOWS) // 4)
        assert session.info.shard_count == len(TOKENS.tobytes()) // SPAN == 14
        taken = await batches(session)
        assert [row for batch in taken for row in batch.rows("tokens")] == WINDOWS
        assert [key for batch in taken for key in batch.texts("__key__")] == [b"%08d" % n for n in range(len(WINDOWS))]
        assert {url for batch in taken for url in batch.texts("__url__")} == {f"{ROOT}/train/a.bin".encode()}
        head, *fetched = reads.spans
        assert head.size_bytes == 1024
        fetched_once = list(dict.fromkeys(fetched))
        assert fetched == [*fetched_once, *fetched_once[: len(fetched) - len(fetched_once)]]  # the next epoch begins
        shared_bytes = 2 * (14 - 1)  # the last token of a span is the first of the next one
        assert sum(span.size_bytes for span in fetched_once) == len(WINDOWS) * 128 + 2 + shared_bytes


@pytest.mark.parametrize("run_batches", [3, 12])
async def test_batches_made_together_fetch_no_span_twice(tmp_path: Path, run_batches: int) -> None:
    """The cache has room for three spans, and runs of batches of as many, or of all, are made at one time."""
    async with reading(tmp_path, cache_bytes=40 * KIB) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        reads = Reads(rig.store, delay_s=0.005)
        session = await rig.open(fields=FIELDS, uneven="allow", batch_size=4, prefetch_batches=60, runs=True)
        slot_count, batch_count = session.slots.slot_count, 0
        assert session.info.run_batches > run_batches
        running: deque[asyncio.Task[Produced | EpochEnd]] = deque()

        async def oldest() -> int:
            made = await running.popleft()
            assert isinstance(made, Produced)
            session.release(made.slot)
            return made.batch_count

        for step in range(0, -(-len(WINDOWS) // 4), run_batches):
            if len(running) == slot_count:
                batch_count += await oldest()
            running.append(asyncio.create_task(session.produce(Cursor(0, step), run_batches)))
        while running:
            batch_count += await oldest()
        assert batch_count == -(-len(WINDOWS) // 4)
        fetched = [span.start for span in reads.spans[1:]]
        assert len(fetched[:14]) == len(set(fetched[:14])) == 14


async def test_shuffled_spans_hold_every_window(tmp_path: Path) -> None:
    """Shuffle windows count spans; two epochs differ, and hold the same windows."""
    async with reading(tmp_path) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        session = await rig.open(fields=FIELDS, shuffle=True, uneven="allow")
        found = await rows(session)
        assert found != WINDOWS
        assert sorted(found) == sorted(WINDOWS)


async def test_nodes_share_one_file(tmp_path: Path) -> None:
    """Each of four nodes reads a quarter of the file, give or take a span, and together all of it once."""
    async with reading(tmp_path) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        found = []
        for node in range(4):
            topology = Topology(4, node, 1, 0, 4, node)
            session = await rig.open(fields=FIELDS, topology=topology, uneven="allow")
            assert abs(session.info.assigned_bytes - TOKENS.nbytes / 4) <= 1.5 * SPAN
            found += await rows(session)
            await rig.close(session)
        assert sorted(found) == sorted(WINDOWS)


async def test_rows_of_arrays(tmp_path: Path) -> None:
    """A large .npy file beside a small one: rows and keys as of whole files, and no recipe is needed."""
    large, small = np.arange(5000 * 6, dtype=np.float32).reshape(5000, 2, 3), np.zeros((5, 2, 3), np.float32)
    async with reading(tmp_path) as rig:
        rig.store.put("train/a.npy", npy(small))
        rig.store.put("train/b.npy", npy(large))
        rig.store.put("train/c.npy", npy(small + 1))
        urls = (f"npy+{URL}",)
        session = await rig.open(urls=urls, fields=(), keys=True, uneven="allow", batch_size=100)
        taken = await batches(session)
        assert np.array_equal(
            [row for one in taken for row in one.rows("data")], np.concatenate([small, large, small + 1])
        )
        keys = [key for one in taken for key in one.texts("__key__")]
        assert keys == [b"%08d" % n for count in (5, 5000, 5) for n in range(count)]
        assert session.info.shard_count == 2 + large.nbytes // SPAN


async def test_header_and_padding(tmp_path: Path) -> None:
    """The windows of llm.c's files and of .npy files are those of whole files, the last one filled up."""
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(TOKENS)
    recipe = '{"decode": "tokens", "dtype": "uint16", "count": 65, "stride": 64, "last": "pad", "fill": 7}'
    last = TOKENS[len(WINDOWS) * 64 :].tolist()
    expected = [*WINDOWS, last + [7] * (WINDOW - len(last))]
    async with reading(tmp_path) as rig:
        rig.store.put("llmc/a.bin", head.tobytes() + TOKENS.tobytes())
        rig.store.put("npy/a.npy", npy(TOKENS))
        for url in ("tokens-llmc+s3://memory/llmc/", "tokens-npy+s3://memory/npy/"):
            session = await rig.open(urls=(url,), fields=(("tokens", recipe),), keys=True, uneven="allow")
            assert len(session.info.specs) == 3
            taken = await batches(session)
            assert [row for batch in taken for row in batch.rows("tokens")] == expected
            assert taken[-1].texts("__key__")[-1] == b"%08d" % len(WINDOWS)
            await rig.close(session)


@pytest.mark.parametrize(
    ("url", "data", "message"),
    [
        ("tokens-llmc+s3://memory/d/", np.zeros(30_000, np.uint16).tobytes(), "llm.c's header"),
        ("tokens-npy+s3://memory/d/", npy(TOKENS.astype(np.int32)), "one dimension of uint16"),
        ("s3://memory/d/", TOKENS.tobytes() + b"!", "a whole number of uint16"),
        ("npy+s3://memory/d/", npy(TOKENS)[:-2], "30000"),
    ],
)
async def test_what_contradicts_a_file_is_an_error_at_open(tmp_path: Path, url: str, data: bytes, message: str) -> None:
    """A span alone would not show the contradiction, so the file's first bytes are checked before."""
    async with reading(tmp_path) as rig:
        rig.store.put("d/a.bin" if b"NUMPY" not in data[:6] else "d/a.npy", data)
        with pytest.raises(BadShard, match=message):
            await rig.open(urls=(url,), fields=() if url.startswith("npy") else FIELDS)


async def test_a_run_that_began_with_whole_objects_is_refused(tmp_path: Path) -> None:
    """Spans are shards, so another size of them is another order; the run's own fingerprint opens it again."""
    options: dict[str, Any] = {"fields": FIELDS, "shuffle": True, "seed": 5, "uneven": "allow"}
    async with reading(tmp_path / "before", span_bytes=0, cache_bytes=1 << 20) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        before = await rig.open(**options)
        assert before.info.shard_count == 1
    async with reading(tmp_path / "after", cache_bytes=1 << 20) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        fresh = await rig.open(**options)
        again = await rig.open(**options, expect_fingerprint=fresh.info.fingerprint)
        assert again.info.shard_count == 14
        for other in (before.info.fingerprint, bytes(16)):
            with pytest.raises(ObjectChanged, match=r"fingerprint.*span_size"):
                await rig.open(**options, expect_fingerprint=other)


async def test_small_objects_have_the_order_they_had(tmp_path: Path) -> None:
    """A dataset without large objects has the same fingerprint with spans and without."""
    found = set()
    for span_bytes in (0, 32 * KIB):
        async with reading(tmp_path / str(span_bytes), span_bytes=span_bytes, cache_bytes=1 << 20) as rig:
            rig.store.put("train/a.bin", TOKENS.tobytes())
            session = await rig.open(fields=FIELDS, shuffle=True, uneven="allow")
            found.add((session.info.fingerprint, str(await rows(session))))
    assert len(found) == 1


async def test_a_changed_object_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Every range asks for the listed version."""
    async with reading(tmp_path) as rig:
        rig.store.put("train/a.bin", TOKENS.tobytes())
        session = await rig.open(fields=FIELDS, uneven="allow")
        await asyncio.sleep(0)
        rig.store.put("train/a.bin", TOKENS[::-1].tobytes())
        with pytest.raises(ObjectChanged) as caught:
            await rows(session)
        assert caught.value.object == f"{ROOT}/train/a.bin"


async def test_sources_of_a_mixture(tmp_path: Path) -> None:
    """Facts about other objects stay theirs when spans move them: two sources, one in spans and one of small files."""
    async with reading(tmp_path, cache_bytes=1 << 20) as rig:
        rig.store.put("large/a.bin", TOKENS.tobytes())
        for number in range(3):
            rig.store.put(f"small/{number}.bin", TOKENS[number : number + WINDOW].tobytes())
        sources = (
            SourceSpec((f"{ROOT}/large/",), FIELDS, ((0, 0.5),)),
            SourceSpec((f"{ROOT}/small/",), FIELDS, ((0, 0.4),)),
            SourceSpec((f"{ROOT}/large/",), FIELDS, ((0, 0.1),)),
        )
        asked: dict[str, Any] = {
            "urls": sum((one.urls for one in sources), ()),
            "fields": (),
            "sources": sources,
            "mix": "sample",
            "shuffle": True,
        }
        session = await rig.open(**asked, samples_per_epoch=400)
        assert session.info.shard_count == 14 + 3 + 14
        found = {tuple(row) for row in await rows(session)}
        few = {tuple(TOKENS[number : number + WINDOW].tolist()) for number in range(3)}
        assert few <= found <= few | set(map(tuple, WINDOWS))
        assert len(found) > 200


async def test_a_tar_larger_than_the_cache_says_that_it_is_not_cut(tmp_path: Path) -> None:
    """The error names the object, and which objects are read in spans."""
    async with reading(tmp_path, cache_bytes=32 * KIB) as rig:
        rig.store.shard(0, [{"cls": b"1", "txt": bytes(30 * KIB)}, {"cls": b"2", "txt": bytes(30 * KIB)}])
        with pytest.raises(FeeddError, match=r"expected shards of at most 32KiB, .* larger ones: 1, ") as caught:
            await rows(await rig.open(), "cls")
        assert caught.value.object == f"{ROOT}/train/00.tar"
        assert "only files of tokens and .npy files are read in spans" in str(caught.value.hint)
