"""Sessions that a successor opens for the clients of its predecessor, before these clients come.

A client opens its dataset again with the request that it sent before, at another epoch and with the fingerprint that it
knows by then. Such a request gets the session that is open already. Nothing else depends on these sessions: a client
whose request meets none of them opens a session as always, at the position that its trainer has reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import FeeddError
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import check_version, open_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from feedd.owner import Owner
    from feedd.protocols import FeedBackend, FeedSession
    from feedd.serve.served_session import ServedSession
    from feedd.values import Cursor
    from feedd.wire.feed_messages import OpenLimits

_AT_A_TIME: Final = 4
_PAUSE_LATER: Final = 4  # rounds of slots that the predecessor still fills while its successor decodes
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClientState:
    """What a successor must know of one session of its predecessor.

    Attributes:
        id: the session's id.
        owner: who opened the session.
        request: the Open request that the client will send to the successor.
        next: the position at which the client will go on.
    """

    id: str
    owner: Owner
    request: bytes
    next: Cursor


def client_states(sessions: Iterable[ServedSession], *, pausing: bool = False) -> list[ClientState]:
    """Return the states of sessions; with ``pausing``, make their streams pause at the positions in these states."""
    states = []
    for hosted in sessions:
        if hosted.request is None or hosted.closing:
            continue
        at, stream = hosted.machine.progress, hosted.machine.stream
        if pausing and stream is not None:
            at = stream.pause(_PAUSE_LATER * hosted.feed.slots.slot_count)
        states.append(ClientState(hosted.id, hosted.spec.owner, _again(hosted, at.epoch).SerializeToString(), at))
    return states


def resume(sessions: Iterable[ServedSession]) -> None:
    """Make the streams go on that ``client_states`` has paused."""
    for hosted in sessions:
        if hosted.machine.stream is not None:
            hosted.carry_out(hosted.machine.stream.resume())


def end_at_pauses(sessions: Iterable[ServedSession]) -> None:
    """End the streams that ``client_states`` has paused, each behind the batches before its pause."""
    for hosted in sessions:
        if hosted.machine.stream is not None:
            hosted.carry_out(hosted.machine.stream.end_at_pause())


def _again(hosted: ServedSession, epoch: int) -> pb.OpenRequest:
    """Return the request with which a session's client opens its dataset again."""
    request = pb.OpenRequest()
    request.CopyFrom(hosted.request or request)
    request.epoch = epoch
    request.expect_fingerprint = hosted.feed.info.fingerprint
    request.uneven = hosted.feed.info.uneven or request.uneven
    request.open_id = ""
    return request


def _key(owner: Owner, request: pb.OpenRequest) -> tuple[Owner, bytes]:
    """Return what tells sessions apart that differ for their clients; a session serves all epochs."""
    plain = pb.OpenRequest()
    plain.CopyFrom(request)
    plain.epoch = 0
    plain.open_id = ""
    return owner, plain.SerializeToString(deterministic=True)


@dataclass(eq=False, slots=True)
class _Early:
    """A session that is being opened, or is open.

    Attributes:
        key: what its client will ask for.
        settled: set once the session is open or failed to open.
        feed: the session; None: it is not open.
        task: opens it.
    """

    key: tuple[Owner, bytes]
    settled: asyncio.Event
    feed: FeedSession | None = None
    task: asyncio.Task[None] | None = None


class Preopened:
    """The sessions that wait for their clients."""

    def __init__(
        self,
        backend: FeedBackend,
        limits: OpenLimits,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """Store the dependencies.

        Args:
            backend: opens sessions.
            limits: limits of their requests.
            spawn: starts a task in a group that outlives this object.
        """
        self._backend = backend
        self._limits = limits
        self._spawn = spawn
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._waiting: dict[str, _Early] = {}  # by the id of the predecessor's session
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def open_count(self) -> int:
        """Number of sessions that are open, and whose clients have not come."""
        return sum(early.feed is not None for early in self._waiting.values())

    async def open(self, states: Sequence[ClientState], timeout_s: float) -> None:
        """Open the sessions that are not open yet, and close those whose clients are gone.

        After ``timeout_s`` the others are opened in the background.
        """
        known = {state.id for state in states}
        await self._drop([name for name in self._waiting if name not in known])
        for state in states:
            if state.id not in self._waiting:
                request = pb.OpenRequest.FromString(state.request)
                early = self._waiting[state.id] = _Early(_key(state.owner, request), asyncio.Event())
                early.task = self._spawn(self._open(early, request, state.owner))
        await self._all((early.settled.wait() for early in self._waiting.values()), timeout_s)

    async def prepare(self, states: Sequence[ClientState], timeout_s: float) -> None:
        """Make the first batches of all sessions that are open, at the positions in ``states``."""
        pairs = [(self._waiting[state.id].feed, state.next) for state in states if state.id in self._waiting]
        await self._all((feed.prepare(at) for feed, at in pairs if feed is not None), timeout_s)

    async def take(self, owner: Owner, request: pb.OpenRequest) -> FeedSession | None:
        """Return the session that waits for this request, once it is open; None: there is none."""
        if not self._waiting:
            return None
        key = _key(owner, request)
        name = next((name for name, early in self._waiting.items() if early.key == key), None)
        if name is None:
            return None
        early = self._waiting.pop(name)
        try:
            await early.settled.wait()
        except asyncio.CancelledError:
            self._waiting[name] = early  # the client asks again
            raise
        return early.feed

    def expire(self, after_s: float) -> None:
        """Close the sessions whose clients have not come after ``after_s``."""
        self._expiry = asyncio.get_running_loop().call_later(after_s, lambda: self._spawn(self.close()))

    async def close(self) -> None:
        """Close all sessions whose clients have not come."""
        if self._expiry is not None:
            self._expiry.cancel()
        await self._drop(list(self._waiting))

    async def _open(self, early: _Early, request: pb.OpenRequest, owner: Owner) -> None:
        try:
            async with self._slots:
                check_version(request.version)
                early.feed = await self._backend.open(replace(open_spec(request, self._limits), owner=owner))
        except FeeddError as error:  # the client opens a session itself, and gets its error
            _log.info("a session was not opened in advance", error=error.message, object=error.object)
        except Exception:  # noqa: BLE001 - a defect must not end the daemon
            _log.exception("a session was not opened in advance")
        finally:
            early.settled.set()

    async def _all(self, calls: Iterable[Coroutine[None, None, object]], timeout_s: float) -> None:
        """Run calls side by side, and at most for ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(call)

    async def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            early = self._waiting.pop(name)
            if early.task is not None:
                early.task.cancel()
                await asyncio.wait([early.task])
            if early.feed is not None:
                await early.feed.close()
