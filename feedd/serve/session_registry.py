"""The open sessions: finds them, and ends those that are no longer used."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from feedd import metrics
from feedd.errors import Draining, NotFound, ResourceExhausted
from feedd.flow.tasks import within
from feedd.serve.admissions import Admissions
from feedd.serve.served_session import ServedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from feedd.open_spec import OpenSpec
    from feedd.owner import Owner
    from feedd.protocols import Clock, FeedSession, Recorder
    from feedd.serve.callers import Caller
    from feedd.serve.served_session import Lifeline
    from feedd.serve.server_options import ServeOptions
    from feedd.serve.session_machine import StreamMachine

    Spawn = Callable[[Coroutine[None, None, None]], object]  # starts a task in the server's task group

_log = structlog.get_logger(__name__)


class Sessions:
    """Sessions by id and by arena token.

    A session ends when the client closes it, or when its last lifeline and its stream are gone. A session that never
    had a lifeline ends ``session_grace_s`` after its stream. All sessions end when the server stops.
    """

    def __init__(self, options: ServeOptions, recorder: Recorder, clock: Clock, spawn: Spawn) -> None:
        """Start empty.

        Args:
            options: bounds and grace times.
            recorder: takes the gauges.
            clock: passed to the sessions.
            spawn: starts a task that the server waits for.
        """
        self._options = options
        self._recorder = recorder
        self._clock = clock
        self._spawn = spawn
        self._by_id: dict[str, ServedSession] = {}
        self._by_token: dict[bytes, ServedSession] = {}
        self.admissions = Admissions(options)
        self._idle = asyncio.Event()
        self._idle.set()
        self._streaming_count = 0
        self.draining = False

    @property
    def count(self) -> int:
        """Number of open sessions."""
        return len(self._by_id)

    @property
    def all(self) -> list[ServedSession]:
        """The open sessions."""
        return list(self._by_id.values())

    @property
    def streams(self) -> list[StreamMachine]:
        """The running streams."""
        machines = [one.machine.stream for one in self._by_id.values()]
        return [stream for stream in machines if stream is not None]

    def of(self, caller: Caller) -> list[ServedSession]:
        """Return the open sessions that a caller may see: its own, or all for an administrator."""
        return [one for one in self._by_id.values() if caller.administers or one.spec.owner == caller.owner]

    @contextmanager
    def admission(self, owner: Owner) -> Iterator[None]:
        """Hold the right to open one session of an owner while it is being opened.

        Raises:
            Draining: no new sessions are accepted any more.
            ResourceExhausted: there are too many sessions, of this owner or of all.
        """
        self.check_draining()
        own = sum(one.spec.owner == owner for one in self._by_id.values())
        with self.admissions.session(owner, self.count, own):
            yield

    def check_draining(self) -> None:
        """Refuse new work while the daemon is draining.

        Raises:
            Draining: the daemon is draining.
        """
        if self.draining:
            raise Draining("the daemon is draining", hint="reconnect", stage="serve")

    def add(self, feed: FeedSession, spec: OpenSpec) -> ServedSession:
        """Add a session that the backend opened."""
        hosted = ServedSession(feed, spec, self._recorder, self._clock)
        self._by_id[hosted.id] = hosted
        self._by_token[hosted.token] = hosted
        self._recorder.move(metrics.SERVE_SESSIONS, 1)
        self._settle(hosted)
        return hosted

    def find(self, session_id: str) -> ServedSession:
        """Return an open session.

        Raises:
            NotFound: the session was closed, or belongs to an earlier start of the daemon; open a new one.
        """
        hosted = self._by_id.get(session_id)
        if hosted is None or hosted.closing:
            raise NotFound("the session is unknown or closed", object=session_id[:64], hint="open again", stage="serve")
        return hosted

    # ------------------------------------------------------------------ streams

    async def take_stream(self, session_id: str) -> ServedSession:
        """Return the session without a stream; a running stream is ended, because its client has reconnected.

        Raises:
            NotFound: there is no such session.
            ResourceExhausted: the former stream does not end in time.
        """
        hosted = self.find(session_id)
        message = "the session's former stream does not end"
        async with within(self._options.close_timeout_s, lambda: ResourceExhausted(message, stage="serve")):
            while hosted.call is not None:
                hosted.call.stop()
                await hosted.call.ended.wait()
        return self.find(session_id)

    def stream_came(self, hosted: ServedSession) -> None:
        """Record the start of a stream."""
        hosted.cancel_grace()
        self._streaming_count += 1
        self._idle.clear()

    def stream_gone(self, hosted: ServedSession) -> None:
        """Record the end of a stream, productions included."""
        hosted.call = None
        self._streaming_count -= 1
        if not self._streaming_count:
            self._idle.set()
        self._settle(hosted)

    async def wait_idle(self) -> None:
        """Wait until no stream is left."""
        await self._idle.wait()

    # ------------------------------------------------------------------ lifelines

    @contextmanager
    def attached(self, token: bytes, lifeline: Lifeline) -> Iterator[int | None]:
        """Keep a lifeline; yield the memfd of the session's arena, or None for an unknown token.

        The session may close before the exit. The arena's memory counts until then.
        """
        hosted = self._by_token.get(token)
        if hosted is None or hosted.closing:
            yield None
            return
        with hosted.feed.client_mapping() as fd:
            hosted.lifelines.add(lifeline)
            hosted.had_lifeline = True
            hosted.cancel_grace()
            hosted.machine.lifeline_came()
            del hosted  # the client may hold the memory long after the session, and nothing else may live that long
            try:
                yield fd
            finally:
                self._detach(token, lifeline)

    def _detach(self, token: bytes, lifeline: Lifeline) -> None:
        hosted = self._by_token.get(token)
        if hosted is None:
            return
        hosted.lifelines.discard(lifeline)
        if not hosted.lifelines and not hosted.closing:
            hosted.carry_out(hosted.machine.lifeline_gone())
            self._settle(hosted)

    # ------------------------------------------------------------------ the end

    async def ended(self, hosted: ServedSession) -> None:
        """End a session because somebody asks for it; what its client holds stays readable to the client."""
        _log.warning("a session is ended on request", session=hosted.id[:8], owner=str(hosted.spec.owner))
        self._spawn(self.close(hosted))
        await hosted.closed.wait()

    def _settle(self, hosted: ServedSession) -> None:
        """Close a session that may have lost its last user, at once or after the grace time."""
        if hosted.closing or hosted.call is not None or hosted.lifelines:
            return
        if hosted.had_lifeline:
            self._spawn(self.close(hosted))
            return
        hosted.cancel_grace()
        loop = asyncio.get_running_loop()
        hosted.grace = loop.call_later(self._options.session_grace_s, lambda: self._spawn(self.close(hosted)))

    async def close(self, hosted: ServedSession) -> None:
        """End a session: stream and productions, then leases, then the backend's session.

        The first caller does this in a task that is never cancelled; other callers wait for it.
        """
        if hosted.closing:
            await hosted.closed.wait()
            return
        hosted.closing = True
        hosted.cancel_grace()
        if hosted.call is not None:
            hosted.call.stop()
            try:
                async with asyncio.timeout(self._options.close_timeout_s):
                    await hosted.call.ended.wait()
            except TimeoutError:
                # Its workers may still write into the arena, so the memory is kept and the session is lost.
                _log.error("a production does not end: its session is kept", session=hosted.id[:8])
                hosted.closing = False
                hosted.closed.set()  # wakes the waiting callers
                hosted.closed = asyncio.Event()  # later callers have to wait too
                return
        await self._finish(hosted)

    async def _finish(self, hosted: ServedSession) -> None:
        if hosted.lifelines:
            hosted.feed.retain_leased()
        hosted.carry_out(hosted.machine.close())
        for lifeline in list(hosted.lifelines):
            lifeline.say_closed()
        del self._by_id[hosted.id]
        del self._by_token[hosted.token]
        try:
            await hosted.feed.close()
        except Exception:  # noqa: BLE001 -- logged with its traceback; the other sessions go on
            _log.exception("a session could not be closed cleanly", session=hosted.id[:8])
        finally:
            self._recorder.move(metrics.SERVE_SESSIONS, -1)
            about = {"owner": str(hosted.spec.owner), "urls": list(hosted.spec.data.urls[:3])}
            _log.info("session closed", session=hosted.id[:8], sent_bytes=hosted.sent_bytes, **about)
            hosted.closed.set()
