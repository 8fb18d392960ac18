"""The decoded cache: shards whose images are stored decoded, if the cache has space (see ``recipe.predecoded``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from feedd.conversion import PARAMS_BYTES_MAX, Conversion
from feedd.dataset.object_spans import is_span
from feedd.dataset.pack_layout import is_pack
from feedd.errors import Unsupported
from feedd.formats.format_registry import format_for
from feedd.recipe.predecoded import ready_prefix, rows_params
from feedd.tables.registry import conversion_named, predecode_conversion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.open_request import Request
    from feedd.dataset.listing import DatasetView
    from feedd.values import FieldRecipe, ObjectRef

_SHARE: Final = 0.8  # part of the cache that one decoded dataset may take
_GROWTH_LEAST: Final = 2  # with less space than this factor, images stay encoded
_SHARD_BYTES_MAX: Final = 2 << 30
_URLS_TOLD: Final = 3
_log = structlog.get_logger("feedd.sessions")
_WINDOWS: Final = 4  # shuffle windows whose shards must fit into the cache together


class DecodedRoom(NamedTuple):
    """Available space for decoded shards.

    Attributes:
        cache_bytes: bytes of the cache.
        shard_bytes: bytes of memory for the conversion of a shard; 0: decoded shards are disabled.
    """

    cache_bytes: int
    shard_bytes: int


def with_predecoded(view: DatasetView, request: Request, room: DecodedRoom) -> DatasetView:
    """Return a view whose shards have decoded images, if the request wants them and there is space.

    If the request wants them and cannot have them, the log says why, once for each source.

    The maximum size of a shard depends on the dataset and the daemon's options. It is part of a shard's identity.
    """
    if not request.spec.data.decoded_cache:
        return view
    if not room.shard_bytes:
        _in_vain(
            request.spec.data.urls, "this daemon has no space for decoded images, or is configured not to keep them"
        )
        return view
    growth = _growth(view, request, room)
    window = max(1, request.window(view.listing))
    most_bytes = min(_SHARD_BYTES_MAX, room.shard_bytes, room.cache_bytes // (_WINDOWS * window))
    refs: list[ObjectRef] = []
    name = [*view.name, f"ready {growth} {most_bytes}"]
    for source, recipe in enumerate(request.wanted):
        shards = view.listing.shards_of(source)
        fields = _ready_fields(recipe, request.read[source]) if growth else []
        found = [_predecoded(view, shard, fields, growth, most_bytes) if fields else None for shard in shards]
        whole = None not in found  # all or none: a field's encoding is read from the first shard
        if not whole:
            reason = _why_not(recipe, fields, growth) or _why_undecoded(view, shards[found.index(None)])
            _in_vain(request.sources[source], reason)
        name.append(rows_params("", fields if whole else (), 0))
        refs.extend(
            replace(view.refs[shard], conversion=conversion) if whole else view.refs[shard]
            for shard, conversion in zip(shards, found, strict=True)
        )
    return view.converted(refs, tuple(name)) if refs != list(view.refs) else view


def _why_not(recipe: Sequence[FieldRecipe], fields: Sequence[FieldRecipe], growth: int) -> str:
    """Return why no image of a source can be stored decoded, whatever its shards are, or an empty string."""
    if not growth:
        return f"the cache is smaller than {_GROWTH_LEAST} times the data that this node reads"
    if not recipe:
        return "the request names no fields"
    if not fields:
        return "no image has a first transform that is the same in every epoch and bytes that no other field reads"
    return ""


def _why_undecoded(view: DatasetView, shard: int) -> str:
    url = view.refs[shard].url
    if is_pack(view.refs[shard]):
        return f"objects such as {url} are single samples, not shards"
    return f"the format of {url} does not store samples as they are"


def _in_vain(urls: Sequence[str], reason: str) -> None:
    _log.warning("decoded_cache=True keeps no image decoded", urls=list(urls[:_URLS_TOLD]), reason=reason)


def _growth(view: DatasetView, request: Request, room: DecodedRoom) -> int:
    """Return how many times larger than its object a shard may become; 0: the space is too small to be useful."""
    spec = request.spec
    nodes = 1 if spec.order.sharding == "replicated" else max(1, spec.order.topology.node_count)
    held_bytes = max(1, int(view.listing.sizes.sum()) // nodes)
    growth = int(room.cache_bytes * _SHARE) // held_bytes
    if growth < _GROWTH_LEAST:
        return 0
    step = 1 << (growth.bit_length() - 1)  # 2, 3, 4, 6, 8, 12: if a dataset grows a little, its shards stay valid
    return step + step // 2 if growth >= step + step // 2 else step


def _ready_fields(recipe: Sequence[FieldRecipe], read: Sequence[FieldRecipe]) -> list[FieldRecipe]:
    """Return the fields whose images can be stored decoded: no other field or filter reads the same bytes."""
    found = []
    for field in recipe:
        others = {source for one in read if one is not field for source in one.sources}
        if others.isdisjoint(field.sources) and ready_prefix(field) is not None:
            found.append(field)
    return found


def _predecoded(
    view: DatasetView, shard: int, fields: Sequence[FieldRecipe], growth: int, most_bytes: int
) -> Conversion | None:
    """Return the conversion that decodes a shard's images; None: the shard cannot have one."""
    ref, name = view.refs[shard], view.listing.format_of(shard)
    if is_pack(ref) or is_span(ref) or conversion_named(name):
        return None
    try:
        params = rows_params(name or format_for(ref.url), fields, min(ref.size_bytes * growth, most_bytes))
    except Unsupported:
        return None  # reading the shard reports the error
    return predecode_conversion(ref.conversion, params) if len(params.encode()) <= PARAMS_BYTES_MAX else None
