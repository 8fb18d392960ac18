"""The Admin service: numbers, cache entries, drain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import grpc

from feedd import __version__
from feedd.errors import BadRequest, FeeddError, PermissionDenied, Unsupported
from feedd.serve.status import abort, as_feedd_error
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any

    from feedd.protocols import Clock
    from feedd.serve.options import ServeHooks
    from feedd.serve.registry import Sessions
    from feedd.values import Lifecycle

    AnyContext = grpc.aio.ServicerContext[Any, Any]

SERVICE = "feedd.v1.Admin"
_GRACE_S_MAX = 86400.0
_LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")


class AdminService:
    """Handlers of the Admin service."""

    def __init__(
        self, sessions: Sessions, hooks: ServeHooks, clock: Clock, daemon_id: str, state: Callable[[], Lifecycle]
    ) -> None:
        """Bind.

        Args:
            sessions: the open ones.
            hooks: what the daemon adds.
            clock: for the uptime, which starts now.
            daemon_id: said in Stats.
            state: the server's state of the moment.
        """
        self._sessions = sessions
        self._hooks = hooks
        self._clock = clock
        self._daemon_id = daemon_id
        self._state = state
        self._started_s = clock.monotonic_s()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what a server registers."""
        methods = {
            "Stats": grpc.unary_unary_rpc_method_handler(
                self.stats, pb.StatsRequest.FromString, pb.StatsResponse.SerializeToString
            ),
            "CacheList": grpc.unary_stream_rpc_method_handler(
                self.cache_list, pb.CacheListRequest.FromString, pb.CacheEntry.SerializeToString
            ),
            "Drain": grpc.unary_unary_rpc_method_handler(
                self.drain, pb.DrainRequest.FromString, pb.DrainResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stats(self, _request: pb.StatsRequest, context: AnyContext) -> pb.StatsResponse:
        """Return state and every metric."""
        try:
            samples = [] if self._hooks.samples is None else list(self._hooks.samples())
        except Exception as error:  # noqa: BLE001 -- the border: whatever it is becomes a status
            await abort(context, as_feedd_error(error, "collecting metrics"))
        return pb.StatsResponse(
            state=self._state().value,
            version=__version__,
            daemon_id=self._daemon_id,
            uptime_s=self._clock.monotonic_s() - self._started_s,
            sessions=self._sessions.count,
            samples=[pb.Sample(name=s.name, labels=dict(s.labels), value=s.value) for s in samples],
        )

    async def cache_list(self, _request: pb.CacheListRequest, context: AnyContext) -> AsyncIterator[pb.CacheEntry]:
        """Stream the cache's entries."""
        try:
            rows = [] if self._hooks.cache_entries is None else list(self._hooks.cache_entries())
        except Exception as error:  # noqa: BLE001 -- the border: whatever it is becomes a status
            await abort(context, as_feedd_error(error, "listing the cache"))
        for row in rows:
            yield pb.CacheEntry(url=row.url, etag=row.etag, size_bytes=row.size_bytes, pins=row.pins)

    async def drain(self, request: pb.DrainRequest, context: AnyContext) -> pb.DrainResponse:
        """Ask the daemon to go away; answers before it does. Only this machine may."""
        try:
            self._drain(request.grace_s, context.peer())
        except FeeddError as error:
            await abort(context, error)
        return pb.DrainResponse()

    def _drain(self, grace_s: float, peer: str) -> None:
        if not peer.startswith(_LOCAL_PEERS):
            raise PermissionDenied(
                "expected drain to be asked for on this machine, got another", object=peer, stage="serve"
            )
        if not math.isfinite(grace_s) or not 0 <= grace_s <= _GRACE_S_MAX:
            raise BadRequest(
                f"expected 0 <= grace_s <= {_GRACE_S_MAX:.0f}, got {grace_s}", object="grace_s", stage="serve"
            )
        if self._hooks.drain is None:
            raise Unsupported("expected a daemon that can be drained, got one without", stage="serve")
        self._hooks.drain(grace_s)
