"""The decoded cache of a session: which shards have ready rows, and that batches do not know."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from feedd.catalog.open_request import Request
from feedd.catalog.stages import PipelineOptions
from feedd.conversion import Conversion, text_of
from feedd.dataset.listing import Listing
from feedd.dataset.pack_layout import TAG
from feedd.metrics import PIPELINE_MADE
from feedd.sessions.decoded_cache import DecodedRoom, with_predecoded
from feedd.tables.converter import formed
from feedd.tables.registry import is_ready
from feedd.values import ObjectRef
from feedd.workers.work import DecodeOptions
from tests.fakes import poison_worker
from tests.fakes.feeding import batches, feeding
from tests.fakes.specs import open_spec
from tests.fakes.tars import jpeg, natural_image

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.dataset.listing import DatasetView
    from tests.fakes.feeding import Feeding, Taken

MIB = 1 << 20
ROOM = DecodedRoom(1024 * MIB, 64 * MIB)
ON = PipelineOptions(ready_bytes=64 * MIB)
FIXED = (("jpg", "image:16x16"), ("cls", "int"))


def request(*fields: tuple[str, str], **changes: Any) -> Request:
    """Return what a client asks for."""
    asked: dict[str, Any] = {"urls": ("s3://b/",), "fields": fields or FIXED, "batch_size": 4, "decoded_cache": True}
    return Request.of(open_spec(**(asked | changes)), 2)


def listing(*keys: str, size_bytes: int = MIB) -> DatasetView:
    """Return a listing as the shelf makes one."""
    return Listing.of(formed([ObjectRef("s3://b", key, size_bytes, key) for key in keys]), 0.0).as_listed


def names(view: DatasetView) -> list[str]:
    """Return the forms, without parameters."""
    return [text_of(ref.conversion).partition(":")[0] for ref in view.refs]


def test_where_there_is_room() -> None:
    """Shards may grow as far as the cache has room for all of them; where that is not twice, nothing changes."""
    whole = listing("a.tar", "b.tar.gz")
    view = with_predecoded(whole, request(), ROOM)
    assert names(view) == ["rows", "gunzip+rows"]
    assert (view.listing, view.counts) == (whole.listing, whole.counts)
    assert with_predecoded(view, request(), ROOM).listing is whole.listing
    assert len({view.name, whole.name, with_predecoded(whole, request(("jpg", "image:8x8")), ROOM).name}) == 3
    assert f'"limit_bytes":{64 * MIB}' in text_of(view.refs[0].conversion)
    many = listing(*(f"{n}.tar" for n in range(40)))
    for cache_mib, growth in {101: 2, 151: 3, 201: 4, 299: 4, 301: 6, 401: 8}.items():
        form = text_of(with_predecoded(many, request(), DecodedRoom(cache_mib * MIB, 64 * MIB)).refs[0].conversion)
        assert form.endswith(f'"limit_bytes":{growth * MIB}}}')
    view = with_predecoded(many, request(window_shards=30), DecodedRoom(240 * MIB, 64 * MIB))
    form = text_of(view.refs[0].conversion)
    assert form.endswith(f'"limit_bytes":{2 * MIB}}}'), "all shards of four windows have room"
    assert with_predecoded(whole, request(), DecodedRoom(4 * MIB, 64 * MIB)) is whole
    nodes = replace(request().spec.order.topology, node_count=2, world_size=2)
    assert names(with_predecoded(whole, request(topology=nodes), DecodedRoom(4 * MIB, 64 * MIB))) == [
        "rows",
        "gunzip+rows",
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {"decoded_cache": False},
        {"fields": (("jpg", "image:raw"), ("cls", "int"))},
        {"fields": (("jpg", "bytes"),)},
        {"fields": (("jpg", "image:16x16"), ("small", '{"decode": "image", "size": [4, 4], "from": ["jpg"]}'))},
        {"filters": ('{"field": "jpg", "min_height": 4}',)},
        {"shuffle": True, "bucket_by": "jpg"},
        {"fields": ()},
    ],
)
def test_where_nothing_changes(asked: dict[str, Any]) -> None:
    """Not asked for, nothing to do ahead, or something else reads the same bytes; said where it was asked for."""
    plain = listing("a.tar")
    with capture_logs() as logs:
        assert with_predecoded(plain, request(**({"fields": FIXED} | asked)), ROOM) is plain
    assert len(logs) == asked.get("decoded_cache", True)
    assert all(line["event"] == "decoded_cache=True keeps no image decoded" for line in logs)


def test_why_nothing_changes_is_said() -> None:
    """Once for each source, in words somebody can act on; where shards are made ready, nothing is."""
    plain = listing("a.tar")
    pack = replace(plain, refs=(replace(plain.refs[0], etag=TAG + "0"),))
    cases = [
        (plain, request(), DecodedRoom(1024 * MIB, 0), "configured not to keep them"),
        (plain, request(), DecodedRoom(MIB, 64 * MIB), "the cache is smaller"),
        (plain, request(("jpg", "image:raw")), ROOM, "same in every epoch"),
        (plain, request(fields=()), ROOM, "names no fields"),
        (pack, request(), ROOM, "objects such as s3://b/a.tar are single samples"),
    ]
    for held, asked, free_slot, reason in cases:
        with capture_logs() as logs:
            with_predecoded(held, asked, free_slot)
        assert [line["urls"] for line in logs] == [["s3://b/"]]
        assert reason in logs[0]["reason"]
    with capture_logs() as logs:
        with_predecoded(plain, request(), ROOM)
    assert not logs


def test_sources_with_anything_else_stay() -> None:
    """All shards of a source, or none; the daemon may forbid it."""
    for other in (listing("a.tar", "b.parquet"), listing("a.tar", "b.zip")):
        assert with_predecoded(other, request(), ROOM) is other
    pack = Listing.of([ObjectRef("s3://b", "p", MIB, TAG + "x")], 0.0).as_listed
    assert with_predecoded(pack, request(), ROOM) is pack
    plain = listing("a.tar")
    assert with_predecoded(plain, request(), DecodedRoom(1024 * MIB, 0)) is plain


def test_only_a_random_cut_makes_another_run() -> None:
    """What is decoded the same is the same run, with and without; with a size before the cut it is another one."""
    plain = listing("a.tar")
    for fields, same in ((FIXED, True), ((("jpg", "image:16x16:random"),), False)):
        marks = {request(*fields, decoded_cache=on).fingerprint(plain.listing) for on in (True, False)}
        assert (len(marks) == 1) == same


def _bytes(taken: Taken) -> list[tuple[str, bytes, bytes, bytes]]:
    """Return every field's values, offsets and shapes: what lies between them is nobody's."""
    found = []
    for spec, region in zip(taken.specs, taken.ready.regions, strict=True):
        rows = taken.ready.rows
        spans = [(region.values_at, region.values_bytes)]
        spans.append((region.offsets_at, 8 * (rows + 1) if region.offsets_at else 0))
        spans.append((region.shapes_at, 8 * rows * spec.ndim if region.shapes_at else 0))
        values, offsets, shapes = (taken.data[at : at + size] for at, size in spans)
        found.append((spec.name, values, offsets, shapes))
    return found


def _store(rig: Feeding) -> None:
    """Store 3 shards of 5 pictures, of which one is broken and one is missing."""
    rng = np.random.default_rng(2)
    for shard in range(3):
        samples = [
            {"jpg": jpeg(natural_image(rng, 30 + 3 * n, 40)), "cls": str(shard * 10 + n).encode()} for n in range(5)
        ]
        if shard == 1:
            samples[2]["jpg"] = samples[2]["jpg"][:-50]
            del samples[3]["jpg"]
        rig.store.shard(shard, samples)


@pytest.mark.parametrize(
    "image",
    [
        "image:16x16",
        "image",
        '{"decode": "image", "size": [16, 16], "augment": ["flip"]}',
        '{"decode": "image", "transforms": [{"op": "resize", "size": 20}, {"op": "random_crop", "size": 16}]}',
        '{"decode": "image", "pad": {"to": "longest"}}',
    ],
)
async def test_batches_are_equal(tmp_path: Path, image: str) -> None:
    """Byte for byte, keys and bad samples too; one shard is made of each, once."""
    async with feeding(tmp_path, options=ON, cache_bytes=64 * MIB) as rig:
        _store(rig)
        asked: dict[str, Any] = {
            "fields": (("jpg", image), ("cls", "int")),
            "keys": True,
            "bad_samples_max": 9,
            "shuffle": True,
        }
        plain = await batches(await rig.open(**asked))
        assert rig.recorder.total(PIPELINE_MADE) == 0
        fetched = len(rig.store.reads)
        for _ in range(2):
            ready = await batches(await rig.open(**asked, decoded_cache=True))
            assert [one.ready.bad_samples for one in ready] == [one.ready.bad_samples for one in plain]
            for one, other in zip(ready, plain, strict=True):
                assert _bytes(one) == _bytes(other)
                assert one.ready.cursor == other.ready.cursor
        assert rig.recorder.total(PIPELINE_MADE) == 3
        assert len(rig.store.reads) == fetched, "objects that are in the cache are made ready of from there"
        assert all(is_ready(Conversion.parse(entry.conversion)) for entry in rig.cache.entries() if entry.conversion)


@pytest.mark.slow
async def test_an_image_that_kills_workers(tmp_path: Path) -> None:
    """It is one bad sample, as without: its shard is made with nothing decoded."""
    decode = DecodeOptions(workers=2, command=poison_worker.COMMAND)
    async with feeding(tmp_path, options=ON, cache_bytes=64 * MIB, decode=decode) as rig:
        picture = jpeg(natural_image(np.random.default_rng(2), 30, 40))
        samples = [{"jpg": one, "cls": b"1"} for one in (picture, picture, b"kill", picture)]
        rig.store.shard(0, samples)
        asked: dict[str, Any] = {"fields": FIXED, "bad_samples_max": 1}
        (plain,) = await batches(await rig.open(**asked))
        for _ in range(2):
            (ready,) = await batches(await rig.open(**asked, decoded_cache=True))
            assert (ready.ready.rows, ready.ready.bad_samples) == (3, 1)
            assert _bytes(ready) == _bytes(plain)
        assert rig.recorder.total(PIPELINE_MADE) == 1
