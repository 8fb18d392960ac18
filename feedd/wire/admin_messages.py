"""Between the Admin service's messages and the values rooms speak in, both ways: the command line is its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.warming import Amount, WarmProgress, WarmSpec
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import OpenLimits, bounded, bounded_texts, error_message, named_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def warm_spec(request: pb.WarmRequest, limits: OpenLimits) -> WarmSpec:
    """Translate a request to warm the cache.

    Raises:
        BadRequest: no URL, too many, or a node that cannot be.
    """
    nodes = bounded("node_count", request.node_count or 1, 1, limits.world_size_max)
    bounded("urls", len(request.urls), 1, limits.urls_max)
    return WarmSpec(
        urls=bounded_texts("urls", request.urls, limits.urls_max, limits.url_bytes_max),
        node_count=nodes,
        node_rank=bounded("node_rank", request.node_rank, 0, nodes - 1),
        sharding=bounded_texts("sharding", [request.sharding or "key"], 1, 64)[0],
        fit=request.fit,
        fields=named_fields(request.fields, limits),
    )


def warm_request(spec: WarmSpec) -> pb.WarmRequest:
    """Return what a client sends."""
    return pb.WarmRequest(
        urls=spec.urls,
        node_count=spec.node_count,
        node_rank=spec.node_rank,
        sharding=spec.sharding,
        fit=spec.fit,
        fields=[pb.Field(name=name, recipe=recipe) for name, recipe in spec.fields],
    )


def amount_message(amount: Amount) -> pb.Amount:
    """Return an amount as it travels."""
    return pb.Amount(objects=amount.object_count, bytes=amount.size_bytes)


def amount_from(message: pb.Amount) -> Amount:
    """Return an amount that came."""
    return Amount(message.objects, message.bytes)


def progress_message(progress: WarmProgress, failures: Iterable[FeeddError]) -> pb.WarmProgress:
    """Return progress as it travels, with the errors since the message before."""
    return pb.WarmProgress(
        total=amount_message(progress.total),
        present=amount_message(progress.present),
        warmed=amount_message(progress.warmed),
        left_out=amount_message(progress.left_out),
        failed=amount_message(progress.failed),
        failures=map(error_message, failures),
    )


def progress_from(message: pb.WarmProgress) -> WarmProgress:
    """Return progress that came; its errors are read with ``error_from``."""
    return WarmProgress(
        total=amount_from(message.total),
        present=amount_from(message.present),
        warmed=amount_from(message.warmed),
        left_out=amount_from(message.left_out),
        failed=amount_from(message.failed),
    )


def error_from(message: pb.Error) -> FeeddError:
    """Return the error a daemon sent, of its own class; a kind of a newer daemon is a plain ``FeeddError``."""
    kind = _KINDS.get(message.kind, FeeddError)
    return kind(message.message, object=message.object, hint=message.hint, stage=message.stage)


def _all_kinds(kind: type[FeeddError]) -> Iterator[type[FeeddError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_kinds(below)


_KINDS = {kind.kind: kind for kind in _all_kinds(FeeddError)}
