"""Delivers a pass's leases in order; reconnects and resumes from the cursor if daemon or connection is lost."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd_client.agreement import AT_END
from feedd_client.arrivals import ArrivedQueue
from feedd_client.errors import (
    DaemonUnreachable,
    DatasetChanged,
    Draining,
    FeedError,
    ProtocolError,
    ResourceError,
)
from feedd_client.lifetime import StopSign
from feedd_client.opener import BACKOFF_FIRST_S, BACKOFF_MAX_S
from feedd_client.session import Position, Session, Stream
from feedd_client.stall import StallWatch, heartbeat_s

if TYPE_CHECKING:
    from feedd_client._wire import feedd_pb2 as pb
    from feedd_client.leases import Arrived, Payload, PrivateCopies
    from feedd_client.opener import Consumer, Opener
    from feedd_client.options import FeedOptions
    from feedd_client.stats import LoaderStats

_log: Final = logging.getLogger("feedd_client")
# A daemon that answers Open and then fails the same batch again and again will not recover by itself.
_LOST = "lost the daemon at step %d of epoch %d (%s). It is tried again for up to %.0f s"
_FRUITLESS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Remains:
    """What a pass leaves behind: a session that another pass may use, and the pass's stream."""

    session: Session
    stream: Stream | None
    failed: bool

    def abandon(self) -> None:
        """Make the daemon end the stream. Takes no lock, so that finalizers may call it."""
        if self.stream is not None:
            self.stream.abandon()

    def settle(self) -> Session | None:
        """End the stream; return the session if another pass can use it, otherwise close the session."""
        if self.stream is not None:
            self.stream.finish()
            if not self.failed:
                return self.session
        self.session.close()
        return None


class Feeder:
    """The leases of one pass, in order. One thread uses a feeder; any thread may call ``interrupt``."""

    def __init__(
        self, opener: Opener, options: FeedOptions, consumer: Consumer, stats: LoaderStats, copies: PrivateCopies
    ) -> None:
        self.session: Session | None = None
        self.ended: pb.EndOfEpoch | None = None
        self.known_steps: int | None = None
        self._opener = opener
        self._options = options
        self._consumer = consumer
        self._stats = stats
        self._copies = copies
        self.stride = consumer.count
        self.replaces = options.samples.replaces
        self._ready = ArrivedQueue()
        self._stream: Stream | None = None
        self._unproven = False  # the session is from an earlier pass and may have ended since
        self._failed = False
        self._lost_at_s: float | None = None
        self._fruitless_count = 0
        self._stop = StopSign()
        self._watch = StallWatch(options.stall_timeout_s)
        self._next = Position()

    @property
    def epoch(self) -> int:
        """The epoch of this pass."""
        return self._next.epoch

    @property
    def left_out_samples(self) -> int:
        """Samples of this consumer that no step of the epoch contains, as far as the daemon knows."""
        return 0 if self.session is None else self.session.granted.left_out_samples

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return self._options.wire_batch_size

    @property
    def uneven(self) -> str:
        """How ranks get equal steps; "auto" before ``start``."""
        return self._opener.uneven

    @property
    def seeding(self) -> tuple[int, int]:
        """The dataset's seed and this consumer's rank."""
        return self._options.seed, self._consumer.topology.rank

    @property
    def next_position(self) -> Position:
        """The position of the first batch that is not taken yet."""
        return self._next

    @property
    def waiting_count(self) -> int:
        """Number of batches that have arrived and are not taken."""
        return self._ready.count

    def start(self, position: Position, idle: Session | None, fingerprint: bytes, *, first: bool = True) -> None:
        """Begin the pass at ``position``, on the ``idle`` session if there is one.

        Args:
            position: the first wanted step.
            idle: session of an earlier pass, or None.
            fingerprint: expected fingerprint of the dataset; empty: any dataset.
            first: no pass over this dataset has begun before. A missing daemon is then an error at once; in a later
                pass the client waits, because the daemon may be restarting.

        Raises:
            FeedError: the dataset cannot be opened, or is not the expected one.
        """
        self._next = position
        self._opener.expect = fingerprint
        session = idle
        if session is None:
            retry = (Draining, ResourceError) if first else (DaemonUnreachable, Draining, ResourceError)
            session = self._opener.open(position.epoch, self._options.open_timeout_s, retry, self._stop)
        self._adopt(session)
        if self.known_steps is None and self._options.lengths_vary:
            self.fill(1)  # on an earlier pass's session, the first message says how many steps this epoch has

    def fill(self, count: int) -> int:
        """Wait until ``count`` batches have arrived or the epoch is over; return how many have arrived.

        Raises:
            FeedError: the daemon failed, and reconnecting did not help, or took too long.
        """
        if self._ready.count >= count:
            return self._ready.count
        began_s = time.perf_counter()
        while self._ready.count < count and self.ended is None:
            self._receive()
        self._stats.wait_s += time.perf_counter() - began_s
        return self._ready.count

    def next_rows(self, index: int) -> int:
        """Return the rows of the ``index``-th next batch, or ``AT_END`` if the epoch ends before it."""
        return self._ready.rows(index) if self.fill(index + 1) > index else AT_END

    def take(self, *, whole: bool, reserved: int) -> Arrived | None:
        """Return the next batch, or None at the end of the epoch. The caller must hand it out; see there.

        With ``whole``, the batches behind it that are alike come together, if the trainer can keep their memory.
        """
        if not self.fill(1):
            return None
        stream = self._stream
        assert stream is not None
        arrived = self._ready.take(
            lambda lease: whole and stream.may_lease(lease, reserved), self.stride, stream.batch_bytes
        )
        self._stats.received(arrived.message, arrived.count)
        self._next = Position(self._next.epoch, arrived.step + arrived.count * self.stride, arrived.anchors)
        return arrived

    def hand_out(self, arrived: Arrived, *, private: bool, reserved: int) -> tuple[Payload, int]:
        """Return the payload for the trainer to keep, the slot itself or a copy, and where the batch begins in it.

        Args:
            arrived: the batch; nothing but its lease may refer to the payload.
            private: always make a copy.
            reserved: slots that the daemon needs to continue. If the trainer holds all other slots, it gets a copy.

        Raises:
            BatchesHeldError: the trainer holds all slots, and copies up to the limit.
        """
        assert self._stream is not None
        return self._stream.hand_out(arrived, None if private else self._copies, reserved)

    def collect(self, *, at_once: bool = False) -> None:
        """Return the slots of dead batches with the next request, or immediately if ``at_once``."""
        if self._stream is not None:
            self._stream.collect()
            if at_once:
                self._stream.flush()

    def interrupt(self) -> None:
        """Make a blocked call in another thread raise."""
        self._stop.set()
        if (stream := self._stream) is not None:
            stream.cancel()

    def let_go(self) -> Remains | None:
        """End the pass without waiting; return the remains to settle. Takes no lock, so that finalizers may call it."""
        stream, session = self._stream, self.session
        self._stream = self.session = None
        self._watch.stop()
        if session is None:
            return None
        if stream is not None:
            for arrived in (*self._ready, *stream.ready):
                if not arrived.lease.handed_out:  # otherwise the slot is returned when the trainer drops its batches
                    session.forget(arrived.lease)
        self._ready.clear()
        return Remains(session, stream, self._failed)

    def close(self) -> Session | None:
        """End the pass; return the session if another pass can use it. Batches in use stay valid."""
        remains = self.let_go()
        return None if remains is None else remains.settle()

    def _adopt(self, session: Session) -> None:
        expected, got = self._opener.expect, session.granted.fingerprint
        if expected and got != expected:
            session.close()
            raise _changed(expected, got, self._options)
        self._opener.settle(got, session.granted.uneven)
        self.session = session
        self._unproven = not session.fresh
        if session.fresh and session.granted.HasField("steps"):
            self.known_steps = session.granted.steps
        self._stats.take_notices(session.notices, log=self._consumer.logs, grown=not session.fresh)
        self._stats.transport = "inline" if session.mapping is None else "slot"
        more = heartbeat_s(self._options.stall_timeout_s), self._stats.step_times
        self._stream = Stream(session, self._next, self._consumer.count, *more)

    def _receive(self) -> None:
        stream = self._stream
        if stream is None or self._stop.is_set():
            raise ProtocolError("expected an open stream, got a closed stream")
        stream.replenish()
        try:
            self._watch.wait(stream)
            stream.receive()
        except FeedError as error:
            self._watch.lost()
            if self._stop.is_set():
                raise
            if not (error.reconnect or self._unproven):
                self._failed = True
                raise
            self._reconnect(error)
            return
        self._unproven = False
        if stream.ready or stream.end is not None:
            self._watch.arrived()
        if stream.ready:
            self._lost_at_s = None
            self._ready.extend(stream.ready)
            stream.ready.clear()
        if stream.known_steps is not None:
            self.known_steps = stream.known_steps
        if stream.notices:
            self._stats.take_notices(stream.notices, log=self._consumer.logs, grown=True)
            stream.notices = ()
        if stream.end is not None:
            self.ended = stream.end
            self.known_steps = stream.end.steps

    def _reconnect(self, cause: FeedError) -> None:
        """Open a new session and resume at the first untaken batch. Received, untaken batches are sent again."""
        session, stream = self.session, self._stream
        assert session is not None
        assert stream is not None
        now_s = time.monotonic()
        # A session kept from an earlier pass may have ended meanwhile; opening a new one is then a start, not a loss.
        patience_s = self._options.open_timeout_s if self._unproven else self._options.reconnect_timeout_s
        if self._lost_at_s is None:
            self._lost_at_s, self._fruitless_count = now_s, 0
            # str: a handler that keeps log records must not keep the traceback, which would keep the arena
            _log.warning(_LOST, self._next.step, self._next.epoch, str(cause), patience_s)
        left_s = self._lost_at_s + patience_s - now_s
        if left_s <= 0 or (self._fruitless_count >= _FRUITLESS_MAX and not isinstance(cause, Draining)):
            raise cause
        if self._fruitless_count and self._stop.wait(min(BACKOFF_FIRST_S * 2**self._fruitless_count, BACKOFF_MAX_S)):
            raise cause
        self._fruitless_count += 1
        stream.cancel()
        self._stream = None
        self._ready.clear()
        session.close(daemon_ends=isinstance(cause, Draining))
        self._opener.forget()
        retry = (DaemonUnreachable, Draining, ResourceError)
        try:
            fresh = self._opener.open(self._next.epoch, left_s, retry, self._stop)
        except retry as error:
            waited_s = time.monotonic() - self._lost_at_s
            error.hint = error.hint or f"the client gave up after {waited_s:.0f} s; raise reconnect_timeout_s"
            raise error from cause
        self._adopt(fresh)
        if fresh.granted.specs != session.granted.specs:
            raise DatasetChanged("expected the same fields after reconnecting, got other fields") from cause
        self._stats.reconnects += 1
        _log.warning("resumed at step %d after %.1f s", self._next.step, time.monotonic() - self._lost_at_s)


def _changed(expected: bytes, got: bytes, options: FeedOptions) -> DatasetChanged:
    return DatasetChanged(
        f"expected dataset fingerprint {expected.hex()}, got {got.hex()}",
        object=" ".join(options.all_urls),
        hint="objects were added, removed or replaced, or the recipe's meaning changed, since this run began",
    )
