"""The Feed service: Open, Stream, Close, Classes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import structlog

from feedd.errors import BadRequest, Draining, FeeddError, NotFound, PermissionDenied, StoreUnavailable
from feedd.flow.open_progress import OpenProgress, begin_open
from feedd.flow.tasks import within
from feedd.serve.grpc_status import abort, as_feedd_error
from feedd.serve.stream import StreamCall
from feedd.units import format_duration
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import (
    bounded_texts,
    check_version,
    client_version,
    cursor_from,
    open_response,
    open_spec,
    said,
    slots_from,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path
    from typing import Any

    from feedd.open_spec import OpenSpec
    from feedd.protocols import FeedBackend, FeedSession
    from feedd.serve.callers import CallContext, Caller, Callers
    from feedd.serve.served_session import ServedSession
    from feedd.serve.server_options import ServeOptions
    from feedd.serve.session_registry import Sessions
    from feedd.serve.stream import Context

    OpenContext = grpc.aio.ServicerContext[pb.OpenRequest, pb.OpenResponse]
    ClassesContext = grpc.aio.ServicerContext[pb.ClassesRequest, pb.ClassesResponse]
    OpenStatusContext = grpc.aio.ServicerContext[pb.OpenStatusRequest, pb.OpenStatusResponse]
    LanesContext = grpc.aio.ServicerContext[pb.LanesRequest, pb.LanesResponse]
    CloseContext = grpc.aio.ServicerContext[pb.CloseRequest, pb.CloseResponse]

SERVICE = "feedd.v1.Feed"
_NAMES_AT_ONCE = 256
_OPEN_ID_BYTES_MAX = 64
_ANSWER_SHARE, _ANSWER_S_MAX = 0.1, 1.0  # share of a client's deadline that is left for the answer to arrive
_log = structlog.get_logger(__name__)


class FeedService:
    """Handlers of the Feed service. An error ends only its call; the daemon lives on."""

    def __init__(
        self,
        backend: FeedBackend,
        sessions: Sessions,
        options: ServeOptions,
        daemon_id: str,
        callers: Callers,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """Store the dependencies.

        Args:
            backend: opens and produces.
            sessions: the open sessions.
            options: bounds and deadlines.
            daemon_id: sent in every answer to Open.
            callers: tells who sent a call.
            spawn: starts a task that outlives the call that started it.
        """
        self._backend = backend
        self._sessions = sessions
        self._options = options
        self._daemon_id = daemon_id
        self._callers = callers
        self._spawn = spawn
        self.arena_path: Path | None = None
        self._opens: dict[str, OpenProgress] = {}  # running Opens, by the id that their clients chose

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to register at a server; the transports serialize Stream's responses."""
        methods = {
            "Open": grpc.unary_unary_rpc_method_handler(
                self.open, pb.OpenRequest.FromString, pb.OpenResponse.SerializeToString
            ),
            "Stream": grpc.stream_stream_rpc_method_handler(self.stream, pb.StreamRequest.FromString, None),
            "OpenStatus": grpc.unary_unary_rpc_method_handler(
                self.open_status, pb.OpenStatusRequest.FromString, pb.OpenStatusResponse.SerializeToString
            ),
            "Lanes": grpc.unary_unary_rpc_method_handler(
                self.lanes, pb.LanesRequest.FromString, pb.LanesResponse.SerializeToString
            ),
            "Close": grpc.unary_unary_rpc_method_handler(
                self.close, pb.CloseRequest.FromString, pb.CloseResponse.SerializeToString
            ),
            "Classes": grpc.unary_stream_rpc_method_handler(
                self.classes, pb.ClassesRequest.FromString, pb.ClassesResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # ------------------------------------------------------------------ Open

    async def open(self, request: pb.OpenRequest, context: OpenContext) -> pb.OpenResponse:
        """Resolve dataset, recipe and topology into a session."""
        progress = begin_open()
        try:
            check_version(request.version)
            owner = self._callers.of(context).owner
            spec = replace(open_spec(request, self._options.open_limits), owner=owner)
            with self._noted(request.open_id, progress), self._sessions.admission(owner):
                opened = await self._open_backend(spec, progress, context.time_remaining())
                if self._sessions.draining:  # all other sessions are closed, so nothing else would close this one
                    await opened.close()
                    self._sessions.check_draining()
                hosted = self._sessions.add(opened, spec)
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            ours = as_feedd_error(error, "opening a session")
            _log_failed_open(ours, request, context.peer(), progress)
            await abort(context, ours)
        told = {"steps": hosted.feed.info.steps, "left_out": hosted.feed.info.left_out}
        about = {"client": client_version(request), "urls": list(spec.data.urls[:3])}
        _log.info("session opened", session=hosted.id[:8], owner=str(owner), **about, **told)
        return self._response(hosted)

    @contextlib.contextmanager
    def _noted(self, open_id: str, progress: OpenProgress) -> Iterator[None]:
        """Let OpenStatus report an Open while it runs; empty: the client does not ask."""
        bounded_texts("open_id", [open_id], 1, _OPEN_ID_BYTES_MAX)
        if open_id:
            self._opens[open_id] = progress
        try:
            yield
        finally:
            self._opens.pop(open_id, None)

    async def _open_backend(self, spec: OpenSpec, progress: OpenProgress, client_s: float | None) -> FeedSession:
        """Open, and answer before the client's deadline, so that the user learns what the Open waited for."""
        deadline_s = self._options.open_timeout_s
        if client_s is not None:
            deadline_s = min(deadline_s, client_s - min(client_s * _ANSWER_SHARE, _ANSWER_S_MAX))
        async with within(deadline_s, lambda: _late(spec, progress, deadline_s)):
            return await self._backend.open(spec)

    async def open_status(self, request: pb.OpenStatusRequest, _context: OpenStatusContext) -> pb.OpenStatusResponse:
        """Return what a running Open waits for; empty once it has answered."""
        progress = self._opens.get(request.open_id)
        return pb.OpenStatusResponse(waits_for="" if progress is None else said(str(progress)))

    async def lanes(self, _request: pb.LanesRequest, _context: LanesContext) -> pb.LanesResponse:
        """Return how many daemons share this node."""
        return pb.LanesResponse(count=self._options.lane_count)

    def _response(self, hosted: ServedSession) -> pb.OpenResponse:
        slots, info = hosted.feed.slots, hosted.feed.info
        response = open_response(info, hosted.id, slots.slot_count, self._daemon_id)
        if self.arena_path is not None:
            response.arena.socket_path = str(self.arena_path)
            response.arena.token = hosted.token
            shared_slot_count = hosted.feed.info.shared_slot_count
            response.arena.size_bytes = (shared_slot_count or slots.slot_count) * slots.slot_bytes
            response.arena.slot_bytes = slots.slot_bytes
            response.arena.places = shared_slot_count
        return response

    # ------------------------------------------------------------------ Stream

    async def stream(self, _requests: AsyncIterator[pb.StreamRequest], context: Context) -> None:
        """Stream one epoch's batches of a session to its client."""
        try:
            caller = _known(self._caller(context))
            with self._sessions.admissions.silent_stream(caller.owner):
                message = "expected the first message of a stream, got none"
                async with within(self._options.first_message_s, lambda: BadRequest(message, stage="serve")):
                    first = await context.read()
            hosted, call = await self._begin(first, context, caller)
            try:
                await call.run(first)
            finally:
                self._sessions.stream_gone(hosted)
        except FeeddError as error:
            await abort(context, error)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "streaming"))

    def _caller(self, context: CallContext) -> Caller | None:
        """Return who sent a call; None: its ticket ended with an earlier daemon, whose sessions are unknown as well."""
        try:
            return self._callers.of(context)
        except PermissionDenied:
            return None

    async def _begin(
        self, first: pb.StreamRequest, context: Context, caller: Caller
    ) -> tuple[ServedSession, StreamCall]:
        if first is grpc.aio.EOF or not first.HasField("start"):  # type: ignore[attr-defined]  # the stubs lack it
            raise BadRequest("expected a start in the first message, got none", stage="serve")
        self._sessions.check_draining()
        next_step = cursor_from(first.start.next)
        _check_owner(self._sessions.find(first.start.session_id), caller)
        hosted = await self._sessions.take_stream(first.start.session_id)
        # Nothing awaits from here until the call runs, so the claim cannot be lost in between.
        held = slots_from(first.start.held.leases) if first.start.HasField("held") else None
        out = hosted.machine.start(next_step, inline_only=first.start.inline_only, held=held)
        assert hosted.machine.stream is not None
        hosted.call = StreamCall(hosted, hosted.machine.stream, context, self._options)
        self._sessions.stream_came(hosted)
        hosted.call.apply(out)
        return hosted, hosted.call

    # ------------------------------------------------------------------ Close

    async def close(self, request: pb.CloseRequest, context: CloseContext) -> pb.CloseResponse:
        """Close a session; an unknown session counts as closed.

        If other sessions write to its arena and the client may still read a batch there, the session ends with the
        client's lifeline. The lifeline ends when nothing refers to the batch any more.
        """
        with contextlib.suppress(FeeddError):
            hosted = self._sessions.find(request.session_id)
            _check_owner(hosted, self._caller(context))
            if not hosted.reads_on:
                await asyncio.shield(self._spawn(self._sessions.close(hosted)))
            elif hosted.call is not None:
                hosted.call.stop()
        return pb.CloseResponse()

    # ------------------------------------------------------------------ Classes

    async def classes(self, request: pb.ClassesRequest, context: ClassesContext) -> AsyncIterator[pb.ClassesResponse]:
        """Send the names of a field's classes in several messages, because there may be a million."""
        try:
            hosted = self._sessions.find(request.session_id)
            _check_owner(hosted, self._caller(context))
            names = _classes(hosted, request.field)
            with self._sessions.admissions.long_answer(hosted.spec.owner):
                for at in range(0, len(names), _NAMES_AT_ONCE):
                    yield pb.ClassesResponse(names=map(said, names[at : at + _NAMES_AT_ONCE]))
        except FeeddError as error:
            await abort(context, error)


def _check_owner(hosted: ServedSession, caller: Caller | None) -> None:
    """Refuse a session of another owner, as if there were none.

    Raises:
        NotFound: the caller is not the owner of the session.
    """
    if caller is None or caller.owner != hosted.spec.owner:
        raise _unknown()


def _known(caller: Caller | None) -> Caller:
    """Return the caller of a Stream.

    Raises:
        NotFound: the call names no user, so it cannot be of a session that is open.
    """
    if caller is None:
        raise _unknown()
    return caller


def _unknown() -> NotFound:
    return NotFound("the session is unknown or closed", hint="open again", stage="serve")


def _late(spec: OpenSpec, progress: OpenProgress, deadline_s: float) -> FeeddError:
    """Return the error of an Open that took too long; an Open nearly always waits for the store."""
    message = f"the dataset did not open within {format_duration(deadline_s)}: no answer while {progress}"
    hint = f"check {progress.suspect}; if it is only slow, raise open_timeout_s"
    return StoreUnavailable(message, object=spec.data.urls[0], hint=hint, stage="serve")


def _log_failed_open(error: FeeddError, request: pb.OpenRequest, peer: str, progress: OpenProgress) -> None:
    """Log the client and the request of a failed Open; a refusal while draining is normal, so it is no warning."""
    log = _log.info if isinstance(error, Draining) else _log.warning
    log(
        "open failed",
        kind=error.kind,
        message=error.message,
        object=error.object,
        hint=error.hint,
        stage=progress.stage,
        peer=peer,
        client=client_version(request),
        urls=list(request.urls[:3]) or [url for source in request.sources[:3] for url in source.urls[:1]],
    )


def _classes(hosted: ServedSession, field: str) -> tuple[str, ...]:
    """Return the names of a field's classes.

    Raises:
        BadRequest: the field has no classes; the message names the fields that have.
    """
    known = hosted.feed.info.classes
    if field not in known:
        raise BadRequest(
            f"expected a field labelled by folder or by a table of names ({', '.join(known) or 'there is none'}), "
            f"got {field!r}",
            object=field,
            hint="labels that are numbers in the data have no names",
            stage="serve",
        )
    return known[field]
