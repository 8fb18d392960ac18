"""The open sessions: who finds which, and when one that nobody uses any more ends."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from feedd import metrics
from feedd.errors import Draining, NotFound, ResourceExhausted
from feedd.flow.tasks import within
from feedd.serve.served_session import HostedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from feedd.protocols import Clock, FeedSession, Recorder
    from feedd.serve.served_session import Lifeline
    from feedd.serve.server_options import ServeOptions
    from feedd.values import OpenSpec

    Spawn = Callable[[Coroutine[None, None, None]], object]  # starts a task in the server's task group

_log = structlog.get_logger(__name__)


class Sessions:
    """Sessions by id and by arena token.

    A session ends when the client closes it; when its last lifeline and its stream are gone; where it never had a
    lifeline, ``session_grace_s`` after its stream went; and when the server stops.
    """

    def __init__(self, options: ServeOptions, recorder: Recorder, clock: Clock, spawn: Spawn) -> None:
        """Start empty.

        Args:
            options: bounds and grace times.
            recorder: where gauges go.
            clock: handed to the sessions.
            spawn: starts a task that the server waits for.
        """
        self._options = options
        self._recorder = recorder
        self._clock = clock
        self._spawn = spawn
        self._by_id: dict[str, HostedSession] = {}
        self._by_token: dict[bytes, HostedSession] = {}
        self._opening_count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._streaming_count = 0
        self.draining = False

    @property
    def count(self) -> int:
        """Open sessions."""
        return len(self._by_id)

    def all(self) -> list[HostedSession]:
        """Return the open sessions."""
        return list(self._by_id.values())

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Hold the right to open one session while it is being opened.

        Raises:
            Draining: no new ones any more.
            ResourceExhausted: there are too many.
        """
        self.check_draining()
        if self.count + self._opening_count >= self._options.sessions_max:
            raise ResourceExhausted(
                f"expected at most {self._options.sessions_max} sessions, got one more", stage="serve"
            )
        self._opening_count += 1
        try:
            yield
        finally:
            self._opening_count -= 1

    def check_draining(self) -> None:
        """Refuse what is new while the daemon goes away.

        Raises:
            Draining: it does.
        """
        if self.draining:
            raise Draining("expected a daemon that stays, got one that is draining", hint="reconnect", stage="serve")

    def add(self, feed: FeedSession, spec: OpenSpec) -> HostedSession:
        """Take in a session the backend opened."""
        hosted = HostedSession(feed, spec, self._recorder, self._clock)
        self._by_id[hosted.id] = hosted
        self._by_token[hosted.token] = hosted
        self._recorder.move(metrics.SERVE_SESSIONS, 1)
        self._settle(hosted)
        return hosted

    def find(self, session_id: str) -> HostedSession:
        """Return an open session.

        Raises:
            NotFound: it was closed, or belongs to an earlier start of the daemon; open a new one.
        """
        hosted = self._by_id.get(session_id)
        if hosted is None or hosted.closing:
            raise NotFound(
                "expected an open session, got an unknown one", object=session_id[:64], hint="open again", stage="serve"
            )
        return hosted

    # ------------------------------------------------------------------ streams

    async def claim_stream(self, session_id: str) -> HostedSession:
        """Return the session without a stream; one that still runs gives way: its client has come back.

        Raises:
            NotFound: no such session.
            ResourceExhausted: the former stream does not end in time.
        """
        hosted = self.find(session_id)
        message = "expected the session's former stream to end, got one that does not"
        async with within(self._options.close_timeout_s, lambda: ResourceExhausted(message, stage="serve")):
            while hosted.call is not None:
                hosted.call.stop()
                await hosted.call.ended.wait()
        return self.find(session_id)

    def stream_came(self, hosted: HostedSession) -> None:
        """A stream begins."""
        hosted.cancel_grace()
        self._streaming_count += 1
        self._idle.clear()

    def stream_gone(self, hosted: HostedSession) -> None:
        """A stream has ended, productions included."""
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
            del hosted  # the client may hold the memory long after the session: nothing else may live that long
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

    def _settle(self, hosted: HostedSession) -> None:
        """Decide about a session that may have lost its last user."""
        if hosted.closing or hosted.call is not None or hosted.lifelines:
            return
        if hosted.had_lifeline:
            self._spawn(self.close(hosted))
            return
        hosted.cancel_grace()
        loop = asyncio.get_running_loop()
        hosted.grace = loop.call_later(self._options.session_grace_s, lambda: self._spawn(self.close(hosted)))

    async def close(self, hosted: HostedSession) -> None:
        """End a session: stream and productions, then leases, then the backend's part.

        The first caller does it, in a task that nobody cancels; others wait for it.
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
                # Its workers may still write into the arena: the memory is kept, the session is lost.
                _log.error("a production does not end; its session is kept", session=hosted.id[:8])
                hosted.closing = False
                hosted.closed.set()  # those who wait
                hosted.closed = asyncio.Event()  # whoever closes it later has to wait, too
                return
        await self._finish(hosted)

    async def _finish(self, hosted: HostedSession) -> None:
        if hosted.lifelines:
            hosted.feed.keep_lent()
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
            hosted.closed.set()
