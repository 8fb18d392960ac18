"""The Admin service: statistics, listing, clearing and warming the cache, drain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import grpc

from feedd import __version__
from feedd.errors import BadRequest, FeeddError, PermissionDenied, Unsupported
from feedd.flow.tasks import both
from feedd.serve.grpc_status import abort, as_feedd_error
from feedd.serve.progress_stream import ProgressStream
from feedd.wire import feedd_pb2 as pb
from feedd.wire.admin_messages import amount_message, warm_spec
from feedd.wire.feed_messages import OpenLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from feedd.protocols import Clock
    from feedd.serve.server_options import CacheState, ServeHooks
    from feedd.serve.session_registry import Sessions
    from feedd.values import Lifecycle
    from feedd.warming import WarmSpec

    AnyContext = grpc.aio.ServicerContext[Any, Any]

SERVICE = "feedd.v1.Admin"
_Hook = TypeVar("_Hook")
_GRACE_S_MAX = 86400.0
_LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")


class AdminService:
    """Handlers of the Admin service."""

    def __init__(
        self, sessions: Sessions, hooks: ServeHooks, clock: Clock, daemon_id: str, state: Callable[[], Lifecycle]
    ) -> None:
        """Store the dependencies.

        Args:
            sessions: the open sessions.
            hooks: callbacks of the daemon.
            clock: clock of the uptime, which starts now.
            daemon_id: sent in Stats.
            state: returns the server's current state.
        """
        self._sessions = sessions
        self._hooks = hooks
        self._clock = clock
        self._daemon_id = daemon_id
        self._state = state
        self._started_s = clock.monotonic_s()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to register at a server."""
        methods = {
            "Stats": grpc.unary_unary_rpc_method_handler(
                self.stats, pb.StatsRequest.FromString, pb.StatsResponse.SerializeToString
            ),
            "CacheList": grpc.unary_stream_rpc_method_handler(
                self.cache_list, pb.CacheListRequest.FromString, pb.CacheEntry.SerializeToString
            ),
            "CacheRemove": grpc.unary_unary_rpc_method_handler(
                self.cache_remove, pb.CacheRemoveRequest.FromString, pb.CacheRemoveResponse.SerializeToString
            ),
            "Warm": grpc.unary_stream_rpc_method_handler(
                self.warm, pb.WarmRequest.FromString, pb.WarmProgress.SerializeToString
            ),
            "Drain": grpc.unary_unary_rpc_method_handler(
                self.drain, pb.DrainRequest.FromString, pb.DrainResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stats(self, _request: pb.StatsRequest, context: AnyContext) -> pb.StatsResponse:
        """Return the state and every metric."""
        try:
            samples = [] if self._hooks.samples is None else list(self._hooks.samples())
            cache = None if self._hooks.cache_state is None else _cache_message(self._hooks.cache_state())
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "collecting metrics"))
        return pb.StatsResponse(
            state=self._state().value,
            version=__version__,
            daemon_id=self._daemon_id,
            uptime_s=self._clock.monotonic_s() - self._started_s,
            sessions=self._sessions.count,
            samples=[pb.Sample(name=s.name, labels=dict(s.labels), value=s.value) for s in samples],
            cache=cache,
        )

    async def cache_list(self, _request: pb.CacheListRequest, context: AnyContext) -> AsyncIterator[pb.CacheEntry]:
        """Stream the cache's entries."""
        try:
            rows = [] if self._hooks.cache_entries is None else list(self._hooks.cache_entries())
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "listing the cache"))
        for row in rows:
            yield pb.CacheEntry(
                url=row.url, etag=row.etag, size_bytes=row.size_bytes, pins=row.pins, form=row.conversion
            )

    async def cache_remove(self, request: pb.CacheRemoveRequest, context: AnyContext) -> pb.CacheRemoveResponse:
        """Remove matching entries that are not in use; allowed on this machine only."""
        try:
            _check_local(context.peer(), "removal")
            removed, in_use = await _offered(self._hooks.cache_remove)(request.pattern)
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "clearing the cache"))
        return pb.CacheRemoveResponse(removed=amount_message(removed), in_use=amount_message(in_use))

    async def warm(self, request: pb.WarmRequest, context: AnyContext) -> None:
        """Warm the cache while the client listens; allowed to every client that may open a session."""
        try:
            self._sessions.check_draining()
            await self._warm(warm_spec(request, OpenLimits()), context)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "warming the cache"))

    async def _warm(self, spec: WarmSpec, context: AnyContext) -> None:
        warm, progress_stream = _offered(self._hooks.warm), ProgressStream()
        await both(
            progress_stream.send(context.write), _run_to_end(warm(spec, progress_stream.report), progress_stream)
        )

    async def drain(self, request: pb.DrainRequest, context: AnyContext) -> pb.DrainResponse:
        """Ask the daemon to stop; answers before it does. Allowed on this machine only."""
        try:
            self._drain(request.grace_s, context.peer())
        except FeeddError as error:
            await abort(context, error)
        return pb.DrainResponse()

    def _drain(self, grace_s: float, peer: str) -> None:
        _check_local(peer, "drain")
        if not math.isfinite(grace_s) or not 0 <= grace_s <= _GRACE_S_MAX:
            raise BadRequest(
                f"expected 0 <= grace_s <= {_GRACE_S_MAX:.0f}, got {grace_s}", object="grace_s", stage="serve"
            )
        if self._hooks.drain is None:
            raise Unsupported("this daemon cannot be drained", stage="serve")
        self._hooks.drain(grace_s)


async def _run_to_end(work: Awaitable[object], progress_stream: ProgressStream) -> None:
    await work
    progress_stream.end()


def _offered(hook: _Hook | None) -> _Hook:
    if hook is None:
        raise Unsupported("this daemon has no cache", stage="serve")
    return hook


def _check_local(peer: str, what: str) -> None:
    if not peer.startswith(_LOCAL_PEERS):
        raise PermissionDenied(f"{what} is allowed on the daemon's machine only", object=peer, stage="serve")


def _cache_message(state: CacheState) -> pb.CacheState:
    return pb.CacheState(
        directory=state.directory,
        limit_bytes=state.limit_bytes,
        free_reserve_bytes=state.free_reserve_bytes,
        committed_bytes=state.committed_bytes,
        reserved_bytes=state.reserved_bytes,
        entries=state.entry_count,
        pins=state.pin_count,
    )
