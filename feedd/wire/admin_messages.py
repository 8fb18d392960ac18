"""Translates between the Admin service's messages and the rooms' values, for the daemon and the command line."""

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
        BadRequest: there is no URL, there are too many, or the node's rank is not valid.
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
    """Return the client's request message."""
    return pb.WarmRequest(
        urls=spec.urls,
        node_count=spec.node_count,
        node_rank=spec.node_rank,
        sharding=spec.sharding,
        fit=spec.fit,
        fields=[pb.Field(name=name, recipe=recipe) for name, recipe in spec.fields],
    )


def amount_message(amount: Amount) -> pb.Amount:
    """Return the message of an amount."""
    return pb.Amount(objects=amount.object_count, bytes=amount.size_bytes)


def amount_from(message: pb.Amount) -> Amount:
    """Return the amount of a message."""
    return Amount(message.objects, message.bytes)


def progress_message(progress: WarmProgress, failures: Iterable[FeeddError]) -> pb.WarmProgress:
    """Return the message of progress, with the errors since the previous message."""
    return pb.WarmProgress(
        total=amount_message(progress.total),
        present=amount_message(progress.present),
        warmed=amount_message(progress.warmed),
        left_out=amount_message(progress.left_out),
        failed=amount_message(progress.failed),
        failures=map(error_message, failures),
    )


def progress_from(message: pb.WarmProgress) -> WarmProgress:
    """Return the progress of a message; ``error_from`` reads its errors."""
    return WarmProgress(
        total=amount_from(message.total),
        present=amount_from(message.present),
        warmed=amount_from(message.warmed),
        left_out=amount_from(message.left_out),
        failed=amount_from(message.failed),
    )


def error_from(message: pb.Error) -> FeeddError:
    """Return the error that a daemon sent, by its class; an unknown kind of a newer daemon is a ``FeeddError``."""
    kind = _KINDS.get(message.kind, FeeddError)
    return kind(message.message, object=message.object, hint=message.hint, stage=message.stage)


def _all_kinds(kind: type[FeeddError]) -> Iterator[type[FeeddError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_kinds(below)


_KINDS = {kind.kind: kind for kind in _all_kinds(FeeddError)}
