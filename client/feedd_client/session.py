"""One opened dataset on one daemon, and one stream of leases on it. Reconnecting is in feeder.py."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from feedd_client import shm
from feedd_client._version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.arrivals import Arrivals
from feedd_client.batch import BatchDecoder
from feedd_client.errors import DaemonVersionError, DatasetNotFound, ProtocolError
from feedd_client.inline import INLINE_LIMIT_BYTES
from feedd_client.leases import LeasedSlots
from feedd_client.transport import Endpoint, from_message, translate, unreachable

if TYPE_CHECKING:
    from feedd_client.errors import FeedError
    from feedd_client.leases import Arrived, Lease, Payload, PrivateCopies
    from feedd_client.step_times import StepTimes
    from feedd_client.transport import Address

_log: Final = logging.getLogger("feedd_client")
CLOSE_TIMEOUT_S: Final = 1.0
FINISH_TIMEOUT_S: Final = 0.5
QUICK_S: Final = 100e-6


class Position(NamedTuple):
    """A resume position: the next wanted step, and anchors that spare the daemon counting samples again."""

    epoch: int = 0
    step: int = 0
    anchors: tuple[tuple[int, int], ...] = ()  # (window, its first sample) of each partition of this node
    row: int = 0  # batch_size=None: samples of that step already taken


def may_defer(owed_count: int, slot_count: int, waited_s: float, *, shared: bool) -> bool:
    """Tell whether returned slots may wait for a fuller request. A request costs more than a small batch does.

    Args:
        owed_count: batches that the daemon owes; a third of the slots is enough work for a quick daemon.
        slot_count: slots of the session.
        waited_s: the wait for the latest message, divided by its batches. A daemon that needs time for a batch gets
            every free slot, because it may fill them at the same time.
        shared: other ranks use the same slots. Each could keep others, until the daemon has none left. Or a slot holds
            a run of batches, which is worth a request.
    """
    return not shared and waited_s < QUICK_S and owed_count * 3 >= slot_count


def cursor_of(at: Position) -> pb.Cursor:
    """Return a position as a cursor message."""
    (window, sample), *more = at.anchors or ((0, 0),)
    return pb.Cursor(
        epoch=at.epoch,
        step=at.step,
        anchor_window=window,
        anchor_sample=sample,
        more_anchors=[pb.Anchor(window=other, sample=its) for other, its in more],
    )


class Session:
    """A granted session. Slots that the user holds outlive their stream."""

    def __init__(self, endpoint: Endpoint, granted: pb.OpenResponse, lane_count: int = 1) -> None:
        """Take over a granted session; attach its arena if possible. ``lane_count``: lanes of its plan.

        Raises:
            DaemonVersionError: the daemon's protocol is more than one minor version apart.
            ProtocolError: the client does not understand the specs or the arena.
        """
        theirs = granted.version
        if theirs.major != PROTOCOL_MAJOR or abs(theirs.minor - PROTOCOL_MINOR) > 1:
            raise DaemonVersionError(
                f"expected protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}, or one minor version apart, "
                f"got {theirs.major}.{theirs.minor} from the daemon",
                object=endpoint.address.text,
                hint="install the same release of feedd and feedd-client",
            )
        if granted.slot_count < 1:
            raise ProtocolError(f"expected at least one slot, got {granted.slot_count}")
        self.endpoint = endpoint
        self.pid = os.getpid()
        self.id = granted.session_id
        self.granted = granted
        self.notices = tuple(granted.notices)  # the latest notices: streams may replace them
        self.slot_count = granted.slot_count
        self.shared_slot_count = granted.arena.places
        self.run_batches = granted.run_batches or 1
        _check_runs(granted)
        self.decoder = BatchDecoder(granted.specs)
        self.mapping = _attach(granted)
        self.generations: dict[int, int] = {}
        self.received: dict[int, int] = {}  # slot -> generation of received, unreturned batches
        self.leased = LeasedSlots()  # the held slots whose batches the trainer has
        self.fresh = True
        self.lane_count = lane_count

    @property
    def free_count(self) -> int:
        """Number of slots that the trainer does not hold."""
        return self.slot_count - len(self.leased)

    def refresh(self, place: int, size_bytes: int) -> None:
        """Drop the trainer's writes to a batch in a shared arena, and free their memory."""
        if self.mapping is not None and self.shared_slot_count:
            self.mapping.refresh(place * self.granted.arena.slot_bytes, size_bytes)

    def forget(self, lease: Lease) -> None:
        """Stop holding a slot; the next stream's start reports it as free."""
        self.received.pop(lease.slot, None)

    def collect(self) -> list[pb.Release]:
        """Return releases for the slots whose batches have died; they are no longer held."""
        found = []
        died = self.leased.died
        while died:
            message = died.popleft().message
            slot = message.slot
            self.leased.forget(slot)
            del self.received[slot]
            if self.shared_slot_count:
                self.refresh(message.place, message.size_bytes)
            found.append(pb.Release(slot=slot, generation=message.generation))
        return found

    def close(self, *, daemon_ends: bool = False) -> None:
        """Tell the daemon to close the session, unless it closes all; the arena stays mapped while views of it live."""
        if not daemon_ends:
            self.endpoint.close_session(self.id, CLOSE_TIMEOUT_S)
        self.mapping = None


def _check_runs(granted: pb.OpenResponse) -> None:
    """Check that a slot has room for its run.

    Raises:
        ProtocolError: it has not.
    """
    if granted.run_batches > 1:
        size_bytes = granted.run_batches * granted.batch_bytes
        room_bytes = granted.arena.slot_bytes if granted.HasField("arena") else INLINE_LIMIT_BYTES
        if not 0 < size_bytes <= room_bytes:
            raise ProtocolError(
                f"expected runs of at most {room_bytes} bytes, got {granted.run_batches} x {granted.batch_bytes}"
            )


def _attach(granted: pb.OpenResponse) -> shm.Mapping | None:
    if not granted.HasField("arena"):
        return None
    arena = granted.arena
    slots = arena.places or granted.slot_count
    if slots * arena.slot_bytes > arena.size_bytes or (arena.places and arena.slot_bytes % mmap.PAGESIZE):
        raise ProtocolError(f"expected {slots} slots of {arena.slot_bytes} bytes in the arena, got {arena.size_bytes}")
    try:
        return shm.attach(arena.socket_path, arena.token, arena.size_bytes, private=arena.places > 0)
    except OSError as error:
        _log.warning(
            "shared memory of the daemon cannot be attached (%s: %s); batches travel inline, at several times the"
            " cost. In a container, mount the socket's directory.",
            arena.socket_path,
            str(error),
        )
        return None


class Stream:
    """One Feed.Stream call. One thread uses a stream; any thread may call ``cancel``."""

    def __init__(
        self,
        session: Session,
        start: Position,
        stride: int,
        heartbeat_s: float = 0.0,
        step_times: StepTimes | None = None,
    ) -> None:
        """Start at ``start``; the consumer takes every ``stride``-th step. ``heartbeat_s=0`` requests no heartbeats.

        The daemon gets the ``step_times`` about once a second.

        The start message lists the slots that the user still holds. All other slots are free, even if an earlier
        stream lost their returns.
        """
        self.end: pb.EndOfEpoch | None = None
        self.known_steps: int | None = None
        self.notices: tuple[pb.Notice, ...] = ()  # of the latest message with notices
        self.message_count = 0
        self.waiting_for = ""  # from the latest heartbeat
        self._step_times = step_times
        self._waited_s = math.inf  # for each batch of the latest message
        self._lost: FeedError | None = None
        self._session = session
        self._epoch = start.epoch
        self._arrivals = Arrivals(session, start, stride)
        self._returns: list[pb.Release] = []
        self._credits = 0
        session.collect()  # slots of dead batches are then missing from the start message, which frees them
        request = pb.StreamRequest(
            start=pb.StreamStart(
                session_id=session.id,
                next=cursor_of(start),
                inline_only=session.mapping is None,
                held=pb.HeldLeases(leases=[pb.Release(slot=s, generation=g) for s, g in session.received.items()]),
                heartbeat_ms=math.ceil(heartbeat_s * 1000),
            ),
            credits=session.slot_count - len(session.received),
        )
        self._expected_count = request.credits
        self._requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        self._requests.put(request)
        # The iterator must not refer to this object: gRPC's sender thread holds it until the None arrives.
        self._call = session.endpoint.stub.Stream(iter(self._requests.get, None), metadata=session.endpoint.headers)
        session.fresh = False

    @property
    def address(self) -> Address:
        """The daemon's address."""
        return self._session.endpoint.address

    @property
    def batch_bytes(self) -> int:
        """Bytes from one batch of a run to the next."""
        return self._session.granted.batch_bytes

    @property
    def ready(self) -> list[Arrived]:
        """The batches that have arrived; the owner takes them out."""
        return self._arrivals.ready

    @property
    def awaits_batch(self) -> bool:
        """Whether the daemon owes a requested batch."""
        return self._expected_count > 0

    def receive(self) -> None:
        """Wait for one message and process it.

        Raises:
            FeedError: the daemon's error, a protocol error, or (``reconnect``) a lost stream.
        """
        began_s = time.perf_counter()
        try:
            response = next(self._call)
        except StopIteration:
            raise unreachable(self._session.endpoint.address, "a stream that ended before its epoch") from None
        except grpc.RpcError as error:
            error.__traceback__ = None  # the error is also the call: it would keep the callers' frames and batches
            if self._lost is not None:
                raise self._lost from None
            raise self._of_session(translate(error, self._session.endpoint.address)) from None
        self._waited_s = (time.perf_counter() - began_s) / (len(response.batches) or 1)
        self.message_count += 1
        if response.HasField("heartbeat"):
            self.waiting_for = response.heartbeat.waiting_for
            return
        if response.HasField("error"):
            raise self._of_session(from_message(response.error))
        if response.HasField("known_steps"):
            self.known_steps = response.known_steps
        if response.notices:
            self.notices = self._session.notices = tuple(response.notices)
        for batch in response.batches:
            self._arrivals.take(batch)
            self._expected_count -= 1
        if response.HasField("chunk"):
            self._arrivals.take_chunk(response.chunk)
        if response.HasField("end"):
            if response.end.epoch != self._epoch or self._arrivals.has_part:
                raise ProtocolError(f"expected the end of epoch {self._epoch}, got the end of {response.end.epoch}")
            self.end = response.end

    def _of_session(self, error: FeedError) -> FeedError:
        """Return the error, or a lost stream if the daemon ended the session while no stream used it."""
        if isinstance(error, DatasetNotFound) and error.object == self._session.id:
            return unreachable(self._session.endpoint.address, "a session that ended while this process was away")
        return error

    def give_back(self, lease: Lease) -> None:
        """Return a slot none of whose batches the trainer has; it travels with the next request."""
        if lease.slot >= 0:
            if self._session.received.pop(lease.slot, None) is None:
                return
            self._returns.append(pb.Release(slot=lease.slot, generation=lease.generation))
            self._session.refresh(lease.message.place, lease.message.size_bytes)
        self._return(1)

    def may_lease(self, lease: Lease, reserved: int) -> bool:
        """Whether the trainer can keep the payload of a lease, so that no batch must be copied; see ``hand_out``."""
        session = self._session
        return lease.slot < 0 or lease.handed_out or session.slot_count - len(session.leased) > reserved

    def hand_out(self, arrived: Arrived, copies: PrivateCopies | None, reserved: int) -> tuple[Payload, int]:
        """Return the payload for the trainer to keep, the slot itself or a copy, and where the batch begins in it.

        Args:
            arrived: the batch, or several that are alike; nothing but their lease may refer to the payload. If it may
                not be leased, there is one batch.
            copies: makes a copy if the trainer holds all slots it may hold; None: always copy.
            reserved: slots that the daemon needs to continue.

        Raises:
            BatchesHeldError: the trainer holds all slots, and copies up to the limit.
        """
        session, lease, leased = self._session, arrived.lease, self._session.leased
        payload, at = lease.payload, arrived.at
        if lease.slot >= 0:
            if copies is not None and not lease.handed_out and self.may_lease(lease, reserved):
                leased.watch(lease)
                lease.handed_out = True
            if copies is None or not lease.handed_out:
                payload, at = payload[at : at + arrived.message.size_bytes], 0
                payload = payload.copy() if copies is None else copies.copy(payload, len(leased), session.slot_count)
        lease.left -= arrived.count
        if not lease.left and not lease.handed_out:
            self.give_back(lease)
        return payload, at

    def collect(self) -> None:
        """Return the slots of dead batches, also of earlier streams, with the next request."""
        if self._session.leased.died:
            found = self._session.collect()
            self._returns += found
            self._return(len(found))
        if self._step_times is not None and self._step_times.due:
            self._requests.put(pb.StreamRequest(times=self._step_times.report()))

    def replenish(self) -> None:
        """Before a wait: send the returned slots and credits, unless they may wait for a fuller request."""
        session = self._session
        shared = session.shared_slot_count > 0 or session.run_batches > 1
        if not may_defer(self._expected_count, session.slot_count, self._waited_s, shared=shared):
            self.flush()

    def flush(self) -> None:
        """Send the returned slots and credits now."""
        if self._credits:
            self._expected_count += self._credits
            self._requests.put(pb.StreamRequest(credits=self._credits, releases=self._returns))
            self._returns, self._credits = [], 0

    def _return(self, count: int) -> None:
        self._credits += count
        # A third of the slots are in use, a third received, a third being filled. A run is worth a request.
        if self._session.run_batches > 1 or self._credits * 3 >= self._session.slot_count:
            self.flush()

    def finish(self) -> None:
        """End the stream. After the epoch's end, send the last returns and wait until the daemon has taken them."""
        if self.end is not None:
            timer = threading.Timer(FINISH_TIMEOUT_S, self._call.cancel)
            timer.daemon = True
            timer.start()
            self.flush()
            self._requests.put(None)
            with contextlib.suppress(grpc.RpcError):
                for _ in self._call:
                    pass
            timer.cancel()
        self.cancel()

    def lose(self, error: FeedError) -> None:
        """Give up the stream, from any thread: ``receive`` then raises ``error``."""
        self._lost = error
        self._call.cancel()

    def cancel(self) -> None:
        """End the stream now; a blocked ``receive`` raises. Calling it again has no effect."""
        if self._session.pid != os.getpid():  # after a fork the call is the parent's
            return
        self._requests.put(None)
        self._call.cancel()

    def abandon(self) -> None:
        """Send the last returns and nothing more, so that the daemon ends the stream. Takes no lock."""
        self.flush()
        self._requests.put(None)

    def __del__(self) -> None:
        # gRPC ends a dropped call, but its sender thread would wait for requests forever
        if hasattr(self, "_requests"):
            self._requests.put(None)
