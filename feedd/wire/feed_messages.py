"""Translates between the contract's messages and the rooms' values. Every number of a request is validated here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from feedd.errors import BadRequest, VersionMismatch
from feedd.notices import NOTICES_MAX
from feedd.open_spec import DataSpec, OpenSpec, OrderSpec, SessionSpec, SourceSpec
from feedd.values import Cursor, FieldKind, SlotRef, Topology
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.errors import FeeddError
    from feedd.notices import Notice
    from feedd.values import BatchReady, Produced, Region, SessionInfo, TensorSpec

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
"""Grows by one with each release that adds to the wire. A client and a daemon one apart work together."""

_INT64_MAX = (1 << 63) - 1
_VERSION_CHARACTERS = 64
_ANCHORS_MAX = 1 << 16  # partitions of one node
_KINDS = {
    FieldKind.DENSE: pb.TensorSpec.DENSE,
    FieldKind.RAGGED: pb.TensorSpec.RAGGED,
    FieldKind.TEXT: pb.TensorSpec.TEXT,
    FieldKind.JSON: pb.TensorSpec.JSON,
    FieldKind.PADDED: pb.TensorSpec.PADDED,
}


@dataclass(frozen=True, slots=True)
class OpenLimits:
    """Upper limits of an Open request: far above any sane use, far below anything that could hurt the daemon."""

    urls_max: int = 100_000
    url_bytes_max: int = 8 * 1024
    fields_max: int = 256
    recipe_bytes_max: int = 64 * 1024
    filters_max: int = 64
    sources_max: int = 256
    weights_max: int = 1 << 14  # sources x epochs at which a weight changes
    batch_size_max: int = 1 << 20
    window_shards_max: int = 1 << 20
    prefetch_batches_max: int = 1024
    consumer_count_max: int = 1024
    world_size_max: int = 1 << 20
    lanes_max: int = 64


def check_version(version: pb.ProtocolVersion) -> None:
    """Accept clients whose protocol is at most one minor version apart.

    Raises:
        VersionMismatch: the client's protocol is further apart, or none is given.
    """
    if version.major == PROTOCOL_MAJOR and abs(version.minor - PROTOCOL_MINOR) <= 1:
        return
    ours = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
    theirs = f"{version.major}.{version.minor}" if version.major else "none"
    is_newer = (version.major, version.minor) > (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    behind = "feedd on this node" if is_newer else "feedd-client in the training environment"
    raise VersionMismatch(
        f"expected protocol {ours}, or one minor version apart, got {theirs} from the client",
        hint=f"upgrade {behind}",
        stage="serve",
    )


def bounded(name: str, value: int, low: int, high: int) -> int:
    """Return ``value``.

    Raises:
        BadRequest: the value is not in ``[low, high]``.
    """
    if not low <= value <= high:
        raise BadRequest(f"expected {low} <= {name} <= {high}, got {value}", object=name, stage="serve")
    return value


def bounded_texts(name: str, given: Sequence[str], count_max: int, size_max: int) -> tuple[str, ...]:
    """Return ``given`` as a tuple.

    Raises:
        BadRequest: there are more than ``count_max`` texts, or one has more than ``size_max`` characters.
    """
    bounded(f"count of {name}", len(given), 0, count_max)
    for text in given:
        bounded(f"length of one of {name}", len(text), 0, size_max)
    return tuple(given)


def printable(text: str, size_max: int) -> str:
    """Return the first ``size_max`` characters of a text for the log, with ``?`` for unprintable ones."""
    return "".join(one if " " <= one <= "~" else "?" for one in text[:size_max])


def client_version(request: pb.OpenRequest) -> str:
    """Return a client's version text in a form fit for the log."""
    return printable(request.client_version, _VERSION_CHARACTERS)


def _topology(request: pb.OpenRequest, limits: OpenLimits) -> Topology:
    if not request.HasField("topology"):
        return Topology()
    wire = request.topology
    for name in ("world_size", "local_world_size", "node_count"):
        bounded(name, getattr(wire, name), 1, limits.world_size_max)
    try:
        return Topology(
            world_size=wire.world_size,
            rank=wire.rank,
            local_world_size=wire.local_world_size,
            local_rank=wire.local_rank,
            node_count=wire.node_count,
            node_rank=wire.node_rank,
        )
    except ValueError as error:
        raise BadRequest(str(error), object="topology", stage="serve") from error


def open_spec(request: pb.OpenRequest, limits: OpenLimits) -> OpenSpec:
    """Translate an Open; the backend validates names (of recipes, of sharding), this module numbers and sizes.

    Raises:
        BadRequest: a number or size is out of bounds, or there is nothing to read.
    """
    fields = named_fields(request.recipe.fields, limits)
    sources = _sources(request, fields, limits)
    urls = tuple(url for source in sources for url in source.urls) if sources else _urls(request.urls, limits)
    bounded("length of expect_fingerprint", len(request.expect_fingerprint), 0, 64)
    recipe = request.recipe
    consumer_count = bounded("consumer_count", request.consumer_count or 1, 1, limits.consumer_count_max)
    data = DataSpec(
        urls=urls,
        fields=fields,
        sources=sources,
        keys=recipe.keys,
        bad_samples_max=recipe.bad_samples_max,
        bad_samples=bounded_texts("bad_samples", [recipe.bad_samples], 1, 64)[0],
        filters=bounded_texts("filters", recipe.filters, limits.filters_max, limits.recipe_bytes_max),
        decoded_cache=request.decoded_cache,
    )
    order = OrderSpec(
        batch_size=bounded("batch_size", recipe.batch_size, 1, limits.batch_size_max),
        topology=_topology(request, limits),
        shuffle=request.shuffle.enabled,
        window_shards=bounded("window_shards", request.shuffle.window_shards, 0, limits.window_shards_max),
        window_bytes=bounded("window_bytes", request.shuffle.window_bytes, 0, _INT64_MAX),
        bucket_by=bounded_texts("bucket_by", [request.shuffle.bucket_by], 1, limits.url_bytes_max)[0],
        seed=request.seed,
        sharding=bounded_texts("sharding", [request.sharding or "key"], 1, 64)[0],
        partitions=bounded("partitions", request.partitions, 0, limits.world_size_max),
        uneven=bounded_texts("uneven", [request.uneven or "allow"], 1, 64)[0],
        steps=bounded("steps", request.steps, 0, _INT64_MAX),
        mix=bounded_texts("mix", [request.mix.mode or "stratified"], 1, 64)[0] if sources else "",
        samples_per_epoch=bounded("samples_per_epoch", request.mix.samples_per_epoch, 0, _INT64_MAX),
        left_to_channel=bounded_texts("left_to_channel", request.left_to_channel, 16, 64),
    )
    lanes = bounded("lanes", request.lanes or 1, 1, limits.lanes_max)
    try:
        order = replace(order, lanes=lanes) if order.left_to_channel else order.in_lanes(lanes)
    except ValueError as error:
        raise BadRequest(str(error), object="topology", stage="serve") from error
    session = SessionSpec(
        epoch=bounded("epoch", request.epoch, 0, _INT64_MAX),
        prefetch_batches=bounded("prefetch_batches", request.prefetch_batches, 0, limits.prefetch_batches_max),
        consumer_count=consumer_count,
        consumer_index=bounded("consumer_index", request.consumer_index, 0, consumer_count - 1),
        shared_arena=request.shared_arena and bool(request.share),
        share=bounded_texts("share", [request.share], 1, 256)[0],
        runs=request.runs,
        expect_fingerprint=request.expect_fingerprint,
    )
    return OpenSpec(data, order, session)


def _urls(given: Sequence[str], limits: OpenLimits, name: str = "urls") -> tuple[str, ...]:
    urls = bounded_texts("urls", given, limits.urls_max, limits.url_bytes_max)
    if not urls or not all(urls):
        raise BadRequest(f"expected at least one URL and none empty, got {list(urls[:3])}", object=name, stage="serve")
    return urls


def named_fields(given: Sequence[pb.Field], limits: OpenLimits) -> tuple[tuple[str, str], ...]:
    """Return (name, recipe text) pairs."""
    names = bounded_texts("field names", [field.name for field in given], limits.fields_max, limits.url_bytes_max)
    if len(set(names)) != len(names) or not all(names):
        raise BadRequest(f"expected distinct field names, got {list(names)}", object="recipe", stage="serve")
    recipes = bounded_texts("recipes", [field.recipe for field in given], limits.fields_max, limits.recipe_bytes_max)
    return tuple(zip(names, recipes, strict=True))


def _sources(
    request: pb.OpenRequest, fields: tuple[tuple[str, str], ...], limits: OpenLimits
) -> tuple[SourceSpec, ...]:
    """Translate the datasets of a mixture, if there are any; the plan validates the weights' values."""
    given = request.sources
    if not given:
        return ()
    if request.urls:
        raise BadRequest("expected urls or sources, got both", object="sources", stage="serve")
    bounded("count of sources", len(given), 1, limits.sources_max)
    bounded("count of urls", sum(len(source.urls) for source in given), 1, limits.urls_max)
    since = {one.epoch for source in given for one in source.weights}
    bounded("sources times epochs that weights begin in", len(given) * len(since), 1, limits.weights_max)
    sources = []
    for source in given:
        epochs = [one.epoch for one in source.weights]
        if epochs[:1] != [0] or sorted(set(epochs)) != epochs or epochs[-1] > _INT64_MAX:
            raise BadRequest(
                f"expected weights by ascending epochs from 0 on, got epochs {epochs[:8]}",
                object="sources",
                stage="serve",
            )
        weights = tuple((one.epoch, one.weight) for one in source.weights)
        its = named_fields(source.fields, limits) or fields
        sources.append(SourceSpec(_urls(source.urls, limits, "sources"), its, weights))
    return tuple(sources)


def cursor_from(wire: pb.Cursor) -> Cursor:
    """Translate a resume position.

    Raises:
        BadRequest: a number is not valid in a position.
    """
    for name in ("epoch", "step"):
        bounded(f"cursor.{name}", getattr(wire, name), 0, _INT64_MAX)
    bounded("count of anchors", len(wire.more_anchors), 0, _ANCHORS_MAX)
    anchors = [(wire.anchor_window, wire.anchor_sample), *((more.window, more.sample) for more in wire.more_anchors)]
    for window, sample in anchors:
        bounded("cursor.anchor_window", window, 0, _INT64_MAX)
        bounded("cursor.anchor_sample", sample, 0, _INT64_MAX)
    return Cursor(wire.epoch, wire.step, () if anchors == [(0, 0)] else tuple(anchors))


def cursor_message(at: Cursor) -> pb.Cursor:
    """Return the message of a position."""
    (window, sample), *more = at.anchors or ((0, 0),)
    wire = pb.Cursor(epoch=at.epoch, step=at.step, anchor_window=window, anchor_sample=sample)
    for other_window, other_sample in more:
        wire.more_anchors.add(window=other_window, sample=other_sample)
    return wire


def slots_from(releases: Iterable[pb.Release]) -> list[SlotRef]:
    """Translate releases; the session checks whether the leases exist."""
    return [SlotRef(release.slot, release.generation) for release in releases]


def error_message(error: FeeddError) -> pb.Error:
    """Return the message of an error, for in-band use and the trailer."""
    return pb.Error(
        kind=error.kind,
        message=error.message,
        object=error.object,
        hint=error.hint,
        retryable=error.retryable,
        stage=error.stage,
    )


def said(name: str) -> str:
    """Return a name as valid UTF-8, because file names may be anything."""
    return name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def spec_message(spec: TensorSpec) -> pb.TensorSpec:
    """Return the message of a field's layout."""
    return pb.TensorSpec(name=spec.name, kind=_KINDS[spec.kind], dtype=spec.dtype, shape=spec.shape, ndim=spec.ndim)


def notice_messages(notices: Sequence[Notice]) -> list[pb.Notice]:
    """Return the messages about data that is left out or changed."""
    return [
        pb.Notice(
            kind=notice.kind.value,
            text=said(notice.text),
            count=notice.amount.count,
            size_bytes=notice.amount.size_bytes,
            warns=notice.warns,
        )
        for notice in notices[:NOTICES_MAX]
    ]


def open_response(info: SessionInfo, session_id: str, slot_count: int, daemon_id: str) -> pb.OpenResponse:
    """Return the answer to Open, without the arena."""
    response = pb.OpenResponse(
        version=pb.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
        session_id=session_id,
        specs=[spec_message(spec) for spec in info.specs],
        fingerprint=info.fingerprint,
        shard_count=info.shard_count,
        assigned_shard_count=info.assigned_shard_count,
        assigned_bytes=info.assigned_bytes,
        slot_count=slot_count,
        daemon_id=daemon_id,
        uneven=info.uneven,
        notices=notice_messages(info.notices),
    )
    if info.steps is not None:
        response.steps = info.steps
    if info.left_out is not None:
        response.left_out_samples = info.left_out
    if info.run_batches > 1:
        response.run_batches, response.batch_bytes = info.run_batches, info.batch_bytes
    return response


class BatchWriter:
    """Makes Batch messages; reuses the last regions and anchors, which are the same objects for most batches."""

    def __init__(self) -> None:
        self._regions: tuple[Region, ...] = ()
        self._wire: list[pb.FieldRegion] = []
        self._cursor = pb.Cursor()
        self._anchors: tuple[tuple[int, int], ...] | None = None

    def run(self, seq: int, made: Produced, slot: SlotRef | None) -> pb.Batch:
        """Return the message of a slot's batches: a lease, or, if ``slot`` is None, the head of inline batches."""
        message = self.message(seq, made.batch, slot)
        if made.alike:
            message.alike = made.alike
        if made.more:
            message.more.extend([self.message(0, one, None) for one in made.more])
        return message

    def message(self, seq: int, batch: BatchReady, slot: SlotRef | None) -> pb.Batch:
        """Return the message: a lease on ``slot``, or, if it is None, the head of an inline batch."""
        if batch.regions is not self._regions and batch.regions != self._regions:
            self._wire = [
                pb.FieldRegion(
                    values_at=region.values_at,
                    values_bytes=region.values_bytes,
                    offsets_at=region.offsets_at,
                    shapes_at=region.shapes_at,
                    dims=region.dims,
                )
                for region in batch.regions
            ]
            self._regions = batch.regions
        return pb.Batch(
            seq=seq,
            cursor=self._cursor_of(batch.cursor),
            rows=batch.rows,
            regions=self._wire,
            size_bytes=batch.size_bytes,
            inline=slot is None,
            slot=0 if slot is None else slot.index,
            generation=0 if slot is None else slot.generation,
            bad_samples=batch.bad_samples,
            again=batch.again,
            filtered=batch.filtered,
            place=batch.arena_slot,
            samples=batch.samples,
        )

    def _cursor_of(self, at: Cursor) -> pb.Cursor:
        """Return the message of a position; its users copy it."""
        if at.anchors is not self._anchors:
            self._cursor, self._anchors = cursor_message(at), at.anchors
        self._cursor.epoch, self._cursor.step = at.epoch, at.step
        return self._cursor


def chunk_bytes(seq: int, offset: int, data: memoryview) -> bytes:
    """Return a serialized StreamResponse that holds one Chunk, copying ``data`` once.

    Protobuf fields may be concatenated. The payload goes last, so it need not be copied into a message object first.
    """
    head = pb.Chunk(seq=seq, offset=offset).SerializeToString() + b"\x1a" + _varint(data.nbytes)
    return b"".join((b"\x12", _varint(len(head) + data.nbytes), head, data))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)
