"""The Admin service: statistics, listing, clearing and warming the cache, drain."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import grpc
import structlog

from feedd.errors import BadRequest, FeeddError, NotFound, Unsupported
from feedd.flow.tasks import both
from feedd.serve.admin_answers import ID_DIGITS, observation, session_entry, stats_message, url_starts
from feedd.serve.grpc_status import abort, as_feedd_error
from feedd.serve.progress_stream import ProgressStream
from feedd.wire import feedd_pb2 as pb
from feedd.wire.admin_messages import amount_message, warm_spec
from feedd.wire.feed_messages import OpenLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any

    from feedd.protocols import Clock
    from feedd.serve.callers import Caller, Callers
    from feedd.serve.served_session import ServedSession
    from feedd.serve.server_options import CacheRow, ServeHooks
    from feedd.serve.session_registry import Sessions
    from feedd.values import Lifecycle
    from feedd.warming import WarmSpec

    AnyContext = grpc.aio.ServicerContext[Any, Any]

SERVICE = "feedd.v1.Admin"
_Hook = TypeVar("_Hook")
_GRACE_S_MAX = 86400.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Daemon:
    """Facts about the daemon, for Stats.

    Attributes:
        id: changes at each start.
        clock: clock of the uptime.
        state: returns the server's current state.
        started_s: when the server was made.
        lane_count: daemons that share the node.
    """

    id: str
    clock: Clock
    state: Callable[[], Lifecycle]
    started_s: float
    lane_count: int = 1


class AdminService:
    """Handlers of the Admin service. Clients get what is their own; administrators get everything."""

    def __init__(self, sessions: Sessions, hooks: ServeHooks, daemon: Daemon, callers: Callers) -> None:
        """Store the dependencies.

        Args:
            sessions: the open sessions.
            hooks: callbacks of the daemon.
            daemon: facts for Stats.
            callers: tells who sent a call.
        """
        self._sessions = sessions
        self._hooks = hooks
        self._daemon = daemon
        self._callers = callers

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
            "Sessions": grpc.unary_unary_rpc_method_handler(
                self.sessions, pb.SessionsRequest.FromString, pb.SessionsResponse.SerializeToString
            ),
            "Observe": grpc.unary_unary_rpc_method_handler(
                self.observe, pb.ObserveRequest.FromString, pb.ObserveResponse.SerializeToString
            ),
            "EndSession": grpc.unary_unary_rpc_method_handler(
                self.end_session, pb.EndSessionRequest.FromString, pb.EndSessionResponse.SerializeToString
            ),
            "Drain": grpc.unary_unary_rpc_method_handler(
                self.drain, pb.DrainRequest.FromString, pb.DrainResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stats(self, _request: pb.StatsRequest, context: AnyContext) -> pb.StatsResponse:
        """Return the state and every metric; metrics name no objects and no users."""
        try:
            caller = self._callers.of(context)
            return stats_message(self._hooks, self._daemon, len(self._sessions.of(caller)))
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "collecting metrics"))

    async def observe(self, _request: pb.ObserveRequest, context: AnyContext) -> pb.ObserveResponse:
        """Return one look at the daemon: everything for an administrator, else what is the caller's own."""
        try:
            return await self.observation(self._callers.of(context))
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "observing"))

    async def observation(self, caller: Caller) -> pb.ObserveResponse:
        """Return what a caller may see of the daemon at this moment."""
        return await observation(self._hooks, self._daemon, caller, self._sessions.of(caller))

    async def cache_list(self, _request: pb.CacheListRequest, context: AnyContext) -> AsyncIterator[pb.CacheEntry]:
        """Stream the cache's entries; to a client, those below the URLs that its own sessions read."""
        try:
            caller = self._callers.of(context)
            with self._sessions.admissions.long_answer(caller.owner):
                for row in self._rows(caller):
                    yield pb.CacheEntry(
                        url=row.url, etag=row.etag, size_bytes=row.size_bytes, pins=row.pins, form=row.conversion
                    )
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "listing the cache"))

    def _rows(self, caller: Caller) -> list[CacheRow]:
        rows = [] if self._hooks.cache_entries is None else list(self._hooks.cache_entries())
        if caller.administers:
            return rows
        starts = tuple(url_starts(self._sessions.of(caller)))
        return [row for row in rows if row.url.startswith(starts)]

    async def cache_remove(self, request: pb.CacheRemoveRequest, context: AnyContext) -> pb.CacheRemoveResponse:
        """Remove matching entries that are not in use; for administrators."""
        try:
            caller = self._callers.admin(context, "removal from the cache")
            removed, in_use = await _offered(self._hooks.cache_remove)(request.pattern)
            about = {"pattern": request.pattern, "objects": removed.object_count}
            _log.info("cache entries removed", by=str(caller.owner), **about)
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "clearing the cache"))
        return pb.CacheRemoveResponse(removed=amount_message(removed), in_use=amount_message(in_use))

    async def warm(self, request: pb.WarmRequest, context: AnyContext) -> None:
        """Warm the cache while the client listens; allowed to every client that may open a session."""
        try:
            owner = self._callers.of(context).owner
            self._sessions.check_draining()
            with self._sessions.admissions.warm_up(owner):
                await self._warm(replace(warm_spec(request, OpenLimits()), owner=owner), context)
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
        """Ask the daemon to stop; answers before it does. For administrators."""
        try:
            caller = self._callers.admin(context, "draining")
            _log.info("drain asked for", by=str(caller.owner), grace_s=request.grace_s)
            self._drain(request.grace_s)
        except FeeddError as error:
            await abort(context, error)
        return pb.DrainResponse()

    async def sessions(self, _request: pb.SessionsRequest, context: AnyContext) -> pb.SessionsResponse:
        """Return who holds what: the caller's own sessions, or all for an administrator."""
        try:
            shown = self._sessions.of(self._callers.of(context))
        except FeeddError as error:
            await abort(context, error)
        return pb.SessionsResponse(
            sessions=[session_entry(hosted, self._daemon.clock.monotonic_s()) for hosted in shown]
        )

    async def end_session(self, request: pb.EndSessionRequest, context: AnyContext) -> pb.EndSessionResponse:
        """End a session of the caller, or of anybody for an administrator."""
        try:
            caller = self._callers.of(context)
            hosted = self._chosen(request.id, caller)
            _log.info("end of a session asked for", session=hosted.id[:8], by=str(caller.owner))
            await asyncio.shield(self._sessions.ended(hosted))
        except FeeddError as error:
            await abort(context, error)
        return pb.EndSessionResponse()

    def _chosen(self, start: str, caller: Caller) -> ServedSession:
        found = [one for one in self._sessions.of(caller) if len(start) >= ID_DIGITS and one.id.startswith(start)]
        if len(found) != 1:
            raise NotFound(
                f"expected the first {ID_DIGITS} digits of one session, got {start[:64]!r}, which {len(found)} have",
                hint="feedd sessions ls shows the sessions that you may end",
                stage="serve",
            )
        return found[0]

    def _drain(self, grace_s: float) -> None:
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
