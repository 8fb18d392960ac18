from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadRequest, NotFound
from feedd.open_spec import SourceSpec
from feedd.values import BatchReady, Cursor, FieldKind, Region, SessionInfo, SlotRef, TensorSpec, Topology
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import (
    BatchWriter,
    OpenLimits,
    chunk_bytes,
    client_version,
    cursor_from,
    cursor_message,
    error_message,
    open_response,
    open_spec,
)


def test_a_full_open_arrives_whole() -> None:
    """Every field of OpenRequest that means something reaches the backend."""
    request = pb.OpenRequest(
        urls=["s3://b/a/", "s3://b/c.tar"],
        recipe=pb.Recipe(
            fields=[pb.Field(name="jpg", recipe="image:8x8")], batch_size=32, keys=True, bad_samples_max=5
        ),
        topology=pb.Topology(world_size=16, rank=9, local_world_size=8, local_rank=1, node_count=2, node_rank=1),
        shuffle=pb.Shuffle(enabled=True, window_shards=3),
        seed=2**64 - 1,
        sharding="size",
        epoch=4,
        prefetch_batches=6,
        consumer_count=2,
        consumer_index=1,
        expect_fingerprint=b"f" * 16,
    )
    spec = open_spec(request, OpenLimits())
    assert spec.data.urls == ("s3://b/a/", "s3://b/c.tar")
    assert spec.data.fields == (("jpg", "image:8x8"),)
    assert (spec.order.batch_size, spec.data.keys, spec.data.bad_samples_max) == (32, True, 5)
    assert spec.order.topology == Topology(16, 9, 8, 1, 2, 1)
    assert (spec.order.shuffle, spec.order.window_shards, spec.order.seed, spec.order.sharding, spec.session.epoch) == (
        True,
        3,
        2**64 - 1,
        "size",
        4,
    )
    assert (spec.session.prefetch_batches, spec.session.consumer_count, spec.session.consumer_index) == (6, 2, 1)
    assert spec.session.expect_fingerprint == b"f" * 16


def _mixed(**changes: object) -> pb.OpenRequest:
    weights = [pb.Weight(weight=0.7), pb.Weight(epoch=3, weight=0.5)]
    its = [pb.Field(name="cls", recipe='{"decode":"int","from":["num"]}')]
    sources = [
        pb.Source(urls=["s3://a/", "s3://aa/"], weights=weights),
        pb.Source(urls=["s3://b/"], fields=its, weights=[pb.Weight(weight=0.3)]),
    ]
    recipe = pb.Recipe(fields=[pb.Field(name="cls", recipe="int")], batch_size=8)
    whole: dict[str, object] = {
        "recipe": recipe,
        "sources": sources,
        "mix": pb.Mix(mode="sample", samples_per_epoch=99),
    }
    return pb.OpenRequest(**{**whole, **changes})  # type: ignore[arg-type]  # the message's own names


def test_lanes_of_a_channel_wait_for_its_sharding() -> None:
    """Where a channel decides the sharding, the topology stays that of the node, and lanes are planned later."""
    whole = pb.Topology(world_size=8, rank=5, local_world_size=4, local_rank=1, node_count=2, node_rank=1)
    request = pb.OpenRequest(urls=["channel://x"], recipe=pb.Recipe(batch_size=1), topology=whole, lanes=2)
    at_once = open_spec(request, OpenLimits()).order
    assert (at_once.lanes, at_once.topology.node_count, at_once.left_to_channel) == (1, 4, ())
    request.left_to_channel.extend(["sharding", "seed"])
    later = open_spec(request, OpenLimits()).order
    assert (later.lanes, later.topology, later.left_to_channel) == (2, Topology(8, 5, 4, 1, 2, 1), ("sharding", "seed"))
    assert later.in_lanes(2).topology == at_once.topology
    request.left_to_channel.append("x" * 65)
    with pytest.raises(BadRequest, match="left_to_channel"):
        open_spec(request, OpenLimits())


def test_sources_arrive_whole() -> None:
    """Each source has its URLs and weights, and its own fields where it has any; all URLs together are the spec's."""
    spec = open_spec(_mixed(), OpenLimits())
    own = (("cls", '{"decode":"int","from":["num"]}'),)
    assert spec.data.sources == (
        SourceSpec(("s3://a/", "s3://aa/"), (("cls", "int"),), ((0, 0.7), (3, 0.5))),
        SourceSpec(("s3://b/",), own, ((0, 0.3),)),
    )
    assert spec.data.urls == ("s3://a/", "s3://aa/", "s3://b/")
    assert (spec.order.mix, spec.order.samples_per_epoch) == ("sample", 99)
    assert open_spec(_mixed(mix=None), OpenLimits()).order.mix == "stratified"
    plain = open_spec(pb.OpenRequest(urls=["s3://b/"], recipe=pb.Recipe(batch_size=1)), OpenLimits())
    assert (plain.data.sources, plain.order.mix, plain.order.samples_per_epoch) == ((), "", 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"urls": ["s3://c/"]}, "urls or sources, got both"),
        ({"sources": [pb.Source(weights=[pb.Weight(weight=1)])]}, "count of urls"),
        ({"sources": [pb.Source(urls=[""], weights=[pb.Weight(weight=1)])]}, "none empty"),
        ({"sources": [pb.Source(urls=["s3://a/"])]}, "epochs that weights begin in"),
        (
            {"sources": [pb.Source(urls=["s3://a/"], weights=[pb.Weight(epoch=1, weight=1)])]},
            "from 0 on, got epochs .1",
        ),
        ({"sources": [pb.Source(urls=["s3://a/"], weights=[pb.Weight(weight=1)] * 2)]}, "ascending epochs"),
        (
            {"sources": [pb.Source(urls=["s3://a/"], weights=[pb.Weight(weight=1), pb.Weight(epoch=1 << 63)])]},
            "ascending epochs",
        ),
        ({"sources": [pb.Source(urls=["s3://a/"], weights=[pb.Weight(weight=1)])] * 257}, "count of sources"),
        (
            {"sources": [pb.Source(urls=["s3://a/"], weights=[pb.Weight(epoch=n, weight=1) for n in range(200)])] * 90},
            "epochs that weights begin in",
        ),
        ({"mix": pb.Mix(samples_per_epoch=1 << 63)}, "samples_per_epoch"),
        ({"mix": pb.Mix(mode="x" * 65)}, "mix"),
    ],
)
def test_sources_are_bounded(changes: dict[str, object], named: str) -> None:
    """Sources without URLs or weights, too many of them, and URLs beside them are refused by name."""
    with pytest.raises(BadRequest, match=named):
        open_spec(_mixed(**changes), OpenLimits())


def test_a_bare_open_has_defaults() -> None:
    """What is left out is one rank, one consumer, sharded by key, one batch ahead."""
    spec = open_spec(pb.OpenRequest(urls=["s3://b/"], recipe=pb.Recipe(batch_size=1)), OpenLimits())
    assert spec.order.topology == Topology()
    assert (spec.order.sharding, spec.session.consumer_count, spec.session.prefetch_batches, spec.order.shuffle) == (
        "key",
        1,
        0,
        False,
    )


@given(
    seq=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
    data=st.binary(max_size=300),
)
def test_a_chunk_made_by_hand_is_the_contracts_chunk(seq: int, offset: int, data: bytes) -> None:
    """The concatenated bytes parse as exactly the message they stand for."""
    got = pb.StreamResponse.FromString(chunk_bytes(seq, offset, memoryview(data)))
    assert got == pb.StreamResponse(chunk=pb.Chunk(seq=seq, offset=offset, data=data))


@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 1 << 20])
def test_chunk_sizes_around_the_length_encoding(size: int) -> None:
    """Lengths of one, two, three and four bytes are encoded right."""
    data = bytes(size)
    assert pb.StreamResponse.FromString(chunk_bytes(1, 2, memoryview(data))).chunk.data == data


def test_batch_messages_follow_their_regions() -> None:
    """Regions are those of the batch at hand even though the last ones are kept."""
    writer = BatchWriter()
    dense = (Region(0, 64), Region(64, 8))
    ragged = (Region(0, 32, 64, 128),)
    for regions in (dense, dense, ragged, dense):
        message = writer.message(7, BatchReady(Cursor(1, 2, ((3, 4),)), 5, regions, 99, 2), SlotRef(3, 11))
        assert [(r.values_at, r.values_bytes, r.offsets_at, r.shapes_at) for r in message.regions] == [
            (r.values_at, r.values_bytes, r.offsets_at, r.shapes_at) for r in regions
        ]
        assert message.cursor == pb.Cursor(epoch=1, step=2, anchor_window=3, anchor_sample=4)
        assert (message.seq, message.rows, message.size_bytes, message.bad_samples) == (7, 5, 99, 2)
        assert (message.inline, message.slot, message.generation) == (False, 3, 11)
    inline = writer.message(8, BatchReady(Cursor(), 1, dense, 72), None)
    assert (inline.inline, inline.slot, inline.generation) == (True, 0, 0)


@pytest.mark.parametrize("field", ["epoch", "step", "anchor_window", "anchor_sample"])
def test_cursors_are_bounded(field: str) -> None:
    """Numbers no position can have are refused by name."""
    assert cursor_from(pb.Cursor(epoch=1, step=2, anchor_window=3, anchor_sample=4)) == Cursor(1, 2, ((3, 4),))
    wire = pb.Cursor()
    setattr(wire, field, 1 << 63)
    with pytest.raises(BadRequest, match=field):
        cursor_from(wire)


def test_every_layout_has_its_word() -> None:
    """Each kind of field is told apart on the wire, and unknown steps stay unknown."""
    specs = tuple(TensorSpec(kind.value, kind, "uint8", (), 2) for kind in FieldKind)
    response = open_response(SessionInfo(specs, b"f" * 16, 4, 2, 100), "id", 3, "daemon")
    kinds = [spec.kind for spec in response.specs]
    assert kinds == [*range(pb.TensorSpec.DENSE, pb.TensorSpec.PADDED + 1)]
    assert not response.HasField("steps")
    assert response.specs[0].ndim == 2


def test_an_error_travels_whole() -> None:
    """Kind, message, object, hint and stage arrive as they were raised."""
    error = NotFound("expected a key, got none", object="s3://b/k", hint="look again", stage="source")
    assert error_message(error) == pb.Error(
        kind="not-found", message="expected a key, got none", object="s3://b/k", hint="look again", stage="source"
    )


@given(
    anchors=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=5),
    epoch=st.integers(0, 9),
    step=st.integers(0, 2**40),
)
def test_cursors_travel_whole(anchors: list[tuple[int, int]], epoch: int, step: int) -> None:
    """A position of any number of partitions comes back as it was; one partition at its start needs no anchor."""
    at = Cursor(epoch, step, tuple(anchors))
    expected = Cursor(epoch, step) if anchors == [(0, 0)] else at
    assert cursor_from(cursor_message(at)) == expected


def test_too_many_anchors_are_refused() -> None:
    """No node has so many partitions."""
    wire = pb.Cursor(more_anchors=[pb.Anchor()] * ((1 << 16) + 1))
    with pytest.raises(BadRequest, match="anchors"):
        cursor_from(wire)


def test_a_client_version_is_short_and_printable() -> None:
    """Of what a client calls its version, 64 printable characters reach the log."""
    assert client_version(pb.OpenRequest(client_version="1.2.3")) == "1.2.3"
    assert client_version(pb.OpenRequest(client_version="1\n\x1b[31m\u202e")) == "1??[31m?"
    assert client_version(pb.OpenRequest(client_version="9" * 10_000_000)) == "9" * 64
