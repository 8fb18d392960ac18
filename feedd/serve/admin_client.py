"""The command line's client of the Admin service."""

from __future__ import annotations

import contextlib
import os
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, cast

import grpc

from feedd.errors import Draining, FeeddError, NotFound, Unsupported
from feedd.flow.pools import LOCAL_FILES
from feedd.serve.grpc_status import TRAILER
from feedd.serve.listen import UnixAddress, parse_address
from feedd.serve.server_options import CacheRow, CacheState
from feedd.serve.tickets import TICKET_HEADER, ticket_of
from feedd.wire import feedd_pb2 as pb
from feedd.wire.admin_messages import amount_from, error_from, progress_from, warm_request
from feedd.wire.feedd_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from feedd.warming import Amount, WarmProgress, WarmSpec

_DEADLINE_S = 60.0
_OPTIONS = [
    # A warm-up may be silent for long; pings detect a daemon that vanished meanwhile.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_CODE = grpc.StatusCode


@asynccontextmanager
async def daemon_at(address: str) -> AsyncIterator[AdminClient]:
    """Yield a client of the daemon at ``unix:///path`` or ``host:port`` (without TLS).

    The daemon's admin socket is used where this user may open it; else the calls carry a ticket of this user.

    Raises:
        BadConfig: the text is not an address.
    """
    where = parse_address(address)
    with contextlib.ExitStack() as stack:
        target, ticket = str(where), None
        if isinstance(where, UnixAddress):
            for_admins = where.admin_path.is_socket() and os.access(where.admin_path, os.W_OK)
            target = f"unix:{where.admin_path if for_admins else where.path}"
            if not for_admins:
                ticket = await LOCAL_FILES.run(stack.enter_context, ticket_of(str(where.arena_path)))
        async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
            yield AdminClient(channel, address, ticket)


class AdminClient:
    """Sends requests to one daemon.

    Every method raises the daemon's own errors. ``NotFound``: no daemon answers. ``Unsupported``: the daemon is too
    old for the request. ``Draining``: the daemon ended before its answer.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, ticket: bytes | None = None) -> None:
        """Store the channel, which the caller closes, and the ticket that its calls carry."""
        self._headers = () if ticket is None else ((TICKET_HEADER, ticket),)
        self._stub = AdminStub(channel)  # type: ignore[no-untyped-call]  # generated
        self.address = address

    async def cache_state(self) -> CacheState | None:
        """Return the current state of the cache; None if the daemon has no cache, or is too old to report it."""
        with self._translated():
            answer: pb.StatsResponse = await self._stub.Stats(
                pb.StatsRequest(), timeout=_DEADLINE_S, metadata=self._headers
            )
        if not answer.HasField("cache"):
            return None
        cache = answer.cache
        return CacheState(
            directory=cache.directory,
            limit_bytes=cache.limit_bytes,
            free_reserve_bytes=cache.free_reserve_bytes,
            committed_bytes=cache.committed_bytes,
            reserved_bytes=cache.reserved_bytes,
            entry_count=cache.entries,
            pin_count=cache.pins,
        )

    async def entries(self) -> list[CacheRow]:
        """Return the whole objects in the cache."""
        with self._translated():
            answers = self._stub.CacheList(pb.CacheListRequest(), timeout=_DEADLINE_S, metadata=self._headers)
            return [CacheRow(row.url, row.etag, row.size_bytes, row.pins, row.form) async for row in answers]

    async def remove(self, pattern: str) -> tuple[Amount, Amount]:
        """Remove matching objects; return the removed amount and the amount still in use."""
        with self._translated():
            request = pb.CacheRemoveRequest(pattern=pattern)
            answer: pb.CacheRemoveResponse = await self._stub.CacheRemove(
                request, timeout=_DEADLINE_S, metadata=self._headers
            )
        return amount_from(answer.removed), amount_from(answer.in_use)

    async def stats(self) -> pb.StatsResponse:
        """Return the daemon's state, version and metrics."""
        with self._translated():
            answer: pb.StatsResponse = await self._stub.Stats(
                pb.StatsRequest(), timeout=_DEADLINE_S, metadata=self._headers
            )
        return answer

    async def sessions(self) -> list[pb.SessionEntry]:
        """Return who holds what: this user's sessions, or all for an administrator."""
        with self._translated():
            answer: pb.SessionsResponse = await self._stub.Sessions(
                pb.SessionsRequest(), timeout=_DEADLINE_S, metadata=self._headers
            )
        return list(answer.sessions)

    async def observe(self) -> pb.ObserveResponse:
        """Return one look at the daemon: everything for an administrator, else what is this user's own."""
        with self._translated():
            answer: pb.ObserveResponse = await self._stub.Observe(
                pb.ObserveRequest(), timeout=_DEADLINE_S, metadata=self._headers
            )
        return answer

    async def end_session(self, start: str) -> None:
        """End the session whose id starts with ``start``, at least 8 digits."""
        with self._translated():
            request = pb.EndSessionRequest(id=start)
            await self._stub.EndSession(request, timeout=_DEADLINE_S, metadata=self._headers)

    async def warm(self, spec: WarmSpec, report: Callable[[WarmProgress, FeeddError | None], None]) -> WarmProgress:
        """Let the daemon warm its cache while this call lasts; ``report`` is called as by ``Warmer.warm``."""
        progress: WarmProgress | None = None
        with self._translated():
            async for message in self._stub.Warm(warm_request(spec), metadata=self._headers):
                progress = progress_from(message)
                report(progress, None)
                for failure in message.failures:
                    report(progress, error_from(failure))
        assert progress is not None, "a successful warm-up has reported progress"
        return progress

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise _as_feedd_error(error, self.address) from error


def _as_feedd_error(error: grpc.aio.AioRpcError, address: str) -> FeeddError:
    trailer = dict(cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ()))
    if TRAILER in trailer:
        return error_from(pb.Error.FromString(trailer[TRAILER]))
    if error.code() is _CODE.UNIMPLEMENTED:
        return Unsupported("the daemon is too old for this request", object=address, stage="cli")
    detail = (error.details() or error.code().name).lower()
    if error.code() is _CODE.UNAVAILABLE and "connect" in detail:
        return NotFound("no daemon answers", object=address, hint="is feedd serve running?", stage="cli")
    return Draining(f"the daemon did not answer: {detail}", object=address, stage="cli")
