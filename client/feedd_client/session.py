"""One opened dataset on one daemon, and one stream of leases on it. No reconnecting here: see feeder.py."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from feedd_client import shm
from feedd_client._version import PROTOCOL_MAJOR
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.batch import BatchDecoder
from feedd_client.errors import DaemonVersionError, ProtocolError
from feedd_client.inline import InlineAssembler
from feedd_client.leases import Lease, LentSlots
from feedd_client.transport import Endpoint, from_message, translate, unreachable

if TYPE_CHECKING:
    from feedd_client.errors import FeedError
    from feedd_client.leases import HeldCopies, Payload
    from feedd_client.transport import Address

_log: Final = logging.getLogger("feedd_client")
CLOSE_TIMEOUT_S: Final = 1.0
FINISH_TIMEOUT_S: Final = 0.5
HEARTBEAT_MINOR: Final = 6  # daemons since then send heartbeats


@dataclass(frozen=True, slots=True)
class Position:
    """A resume position: the next step wanted, and the anchors that spare the daemon recounting."""

    epoch: int = 0
    step: int = 0
    anchors: tuple[tuple[int, int], ...] = ()  # (window, its first sample) of each partition of this node
    row: int = 0  # batch_size=None: samples of that step already taken


def anchors_of(cursor: pb.Cursor) -> tuple[tuple[int, int], ...]:
    """Return the anchors of a position as it came."""
    return (
        (cursor.anchor_window, cursor.anchor_sample),
        *((anchor.window, anchor.sample) for anchor in cursor.more_anchors),
    )


def cursor_of(at: Position) -> pb.Cursor:
    """Return a position as it travels."""
    (window, sample), *more = at.anchors or ((0, 0),)
    return pb.Cursor(
        epoch=at.epoch,
        step=at.step,
        anchor_window=window,
        anchor_sample=sample,
        more_anchors=[pb.Anchor(window=other, sample=its) for other, its in more],
    )


class Session:
    """What Open granted. Slots held by the user survive the stream they came on."""

    def __init__(self, endpoint: Endpoint, granted: pb.OpenResponse) -> None:
        """Take over a granted session; attaches its arena where that is possible.

        Raises:
            DaemonVersionError: the daemon speaks another major version.
            ProtocolError: specs or arena are not understood.
        """
        if granted.version.major != PROTOCOL_MAJOR:
            raise DaemonVersionError(
                f"expected protocol version {PROTOCOL_MAJOR}.x, got {granted.version.major}.{granted.version.minor}",
                object=endpoint.address.text,
                hint="install the same release of feedd and feedd-client",
            )
        if granted.slot_count < 1:
            raise ProtocolError(f"expected at least one slot, got {granted.slot_count}")
        self.endpoint = endpoint
        self.pid = os.getpid()
        self.id = granted.session_id
        self.granted = granted
        self.notices = tuple(granted.notices)  # the latest: streams may say more
        self.slot_count = granted.slot_count
        self.places = granted.arena.places
        self.decoder = BatchDecoder(granted.specs)
        self.mapping = _attach(granted)
        self.generations: dict[int, int] = {}
        self.held: dict[int, int] = {}  # by slot: what came and was not returned, with its generation
        self.lent = LentSlots()  # of these, what the trainer has
        self.fresh = True

    @property
    def free_count(self) -> int:
        """Slots the trainer does not hold."""
        return self.slot_count - len(self.lent)

    def refresh(self, place: int, size_bytes: int) -> None:
        """Give back the memory of what the trainer wrote to a batch of an arena that is not its own."""
        if self.mapping is not None and self.places:
            self.mapping.refresh(place * self.granted.arena.slot_bytes, size_bytes)

    def forget(self, lease: Lease) -> None:
        """Hold a slot no longer; the next stream's start says so."""
        self.held.pop(lease.slot, None)

    def collect(self) -> list[pb.Release]:
        """Return the slots whose batches nobody holds any more; they count as held no longer."""
        found = []
        died = self.lent.died
        while died:
            message = died.popleft().message
            slot = message.slot
            self.lent.forget(slot)
            del self.held[slot]
            if self.places:
                self.refresh(message.place, message.size_bytes)
            found.append(pb.Release(slot=slot, generation=message.generation))
        return found

    def close(self) -> None:
        """Tell the daemon; the arena stays mapped while views of it live."""
        self.endpoint.close_session(self.id, CLOSE_TIMEOUT_S)
        self.mapping = None


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
    """One Feed.Stream call. Used by one thread; ``cancel`` by any."""

    def __init__(self, session: Session, start: Position, stride: int, heartbeat_s: float = 0.0) -> None:
        """Start at ``start``; the consumer takes every ``stride``-th step. 0: ask for no heartbeats.

        The start says which slots the user still holds; all others are free, whatever the end of an earlier stream
        may have lost.
        """
        self.ready: list[Lease] = []
        self.end: pb.EndOfEpoch | None = None
        self.known_steps: int | None = None
        self.notices: tuple[pb.Notice, ...] = ()  # of the latest message that had any
        self.received_bytes = 0
        self.message_count = 0
        self.waiting_for = ""  # what the latest heartbeat said
        self._lost: FeedError | None = None
        self._session = session
        self._epoch = start.epoch
        self._step = start.step
        self._stride = stride
        self._seq = 0
        self._assembling: InlineAssembler | None = None
        self._returns: list[pb.Release] = []
        self._credits = 0
        session.collect()  # to be free is to be missing from the start
        request = pb.StreamRequest(
            start=pb.StreamStart(
                session_id=session.id,
                next=cursor_of(start),
                inline_only=session.mapping is None,
                held=pb.HeldLeases(leases=[pb.Release(slot=s, generation=g) for s, g in session.held.items()]),
                heartbeat_ms=math.ceil(heartbeat_s * 1000),
            ),
            credits=session.slot_count - len(session.held),
        )
        self._awaited_count = request.credits
        self._requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        self._requests.put(request)
        # The iterator must not refer to this object: gRPC's sender thread holds it until the None arrives.
        self._call = session.endpoint.stub.Stream(iter(self._requests.get, None))
        session.fresh = False

    @property
    def address(self) -> Address:
        """The daemon's."""
        return self._session.endpoint.address

    @property
    def beats(self) -> bool:
        """Whether the daemon sends heartbeats."""
        return self._session.granted.version.minor >= HEARTBEAT_MINOR

    @property
    def awaits_batch(self) -> bool:
        """Whether the daemon has been asked for a batch that has not come."""
        return self._awaited_count > 0

    def receive(self) -> None:
        """Wait for one message and take it in.

        Raises:
            FeedError: what the daemon said, a broken contract, or (``reconnect``) a lost stream.
        """
        try:
            response = next(self._call)
        except StopIteration:
            raise unreachable(self._session.endpoint.address, "a stream that ended before its epoch") from None
        except grpc.RpcError as error:
            error.__traceback__ = None  # the error is the call: it would hold our callers' frames, and their batches
            if self._lost is not None:
                raise self._lost from None
            raise translate(error, self._session.endpoint.address) from None
        self.message_count += 1
        if response.HasField("heartbeat"):
            self.waiting_for = response.heartbeat.waiting_for
            return
        if response.HasField("error"):
            raise from_message(response.error)
        if response.HasField("known_steps"):
            self.known_steps = response.known_steps
        if response.notices:
            self.notices = self._session.notices = tuple(response.notices)
        for batch in response.batches:
            self._take(batch)
        if response.HasField("chunk"):
            self._take_chunk(response.chunk)
        if response.HasField("end"):
            if response.end.epoch != self._epoch or self._assembling is not None:
                raise ProtocolError(f"expected the end of epoch {self._epoch}, got that of {response.end.epoch}")
            self.end = response.end

    def give_back(self, lease: Lease) -> None:
        """Return a batch that was not handed out, with the next request that goes out."""
        if lease.slot >= 0:
            if self._session.held.pop(lease.slot, None) is None:
                return
            self._returns.append(pb.Release(slot=lease.slot, generation=lease.generation))
            self._session.refresh(lease.message.place, lease.message.size_bytes)
        self._return(1)

    def hand_out(self, lease: Lease, copies: HeldCopies | None, reserved: int) -> Payload:
        """Return the memory of a batch for the trainer to keep: the slot itself, or a copy.

        Args:
            lease: the batch; nothing else may refer to its payload.
            copies: makes one where the trainer holds all slots it can; None: a copy in any case.
            reserved: slots the daemon needs to go on.

        Raises:
            BatchesHeldError: the trainer holds all slots, and as many copies as it may.
        """
        session, payload, lent = self._session, lease.payload, self._session.lent
        if lease.slot >= 0:
            if copies is None:
                payload = payload.copy()
            elif session.slot_count - len(lent) > reserved:
                lent.watch(lease)
                return payload
            else:
                payload = copies.copy(payload, len(lent), session.slot_count)
        self.give_back(lease)
        return payload

    def collect(self) -> None:
        """Return the batches nobody holds any more, also those of earlier streams, with the next request."""
        if self._session.lent.died:
            found = self._session.collect()
            self._returns += found
            self._return(len(found))

    def flush(self) -> None:
        """Send what was returned."""
        if self._credits:
            self._awaited_count += self._credits
            self._requests.put(pb.StreamRequest(credits=self._credits, releases=self._returns))
            self._returns, self._credits = [], 0

    def _return(self, count: int) -> None:
        self._credits += count
        if self._credits * 3 >= self._session.slot_count:  # a third is taken, one is here, one is being filled
            self.flush()

    def finish(self) -> None:
        """End the stream; after the epoch's end the daemon still takes the last returns, which is waited for."""
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
        """Give the stream up, from any thread: ``receive`` raises ``error``."""
        self._lost = error
        self._call.cancel()

    def cancel(self) -> None:
        """End the stream now; a blocked ``receive`` raises. Idempotent."""
        if self._session.pid != os.getpid():  # after a fork the call is the parent's
            return
        self._requests.put(None)
        self._call.cancel()

    def abandon(self) -> None:
        """Send nothing more: the daemon ends the stream. Takes no lock, so that finalizers may call it."""
        self.flush()
        self._requests.put(None)

    def __del__(self) -> None:
        # gRPC ends a call that was dropped; its sender thread would wait for requests for ever
        if hasattr(self, "_requests"):
            self._requests.put(None)

    def _take(self, batch: pb.Batch) -> None:
        cursor = batch.cursor
        if batch.seq != self._seq or cursor.epoch != self._epoch or cursor.step != self._step or self._assembling:
            raise ProtocolError(
                f"expected batch {self._seq} to be step {self._step} of epoch {self._epoch},"
                f" got batch {batch.seq}: step {cursor.step} of epoch {cursor.epoch}"
            )
        self._seq += 1
        self._awaited_count -= 1
        self._step += self._stride
        self.received_bytes += batch.size_bytes
        if batch.inline:
            self._assembling = InlineAssembler(batch)
            self._take_if_complete(self._assembling)
        else:
            self._take_slot(batch)

    def _take_slot(self, batch: pb.Batch) -> None:
        session, slot, generation = self._session, batch.slot, batch.generation
        if session.mapping is None or not 0 <= slot < session.slot_count:
            raise ProtocolError(f"expected a slot below {session.slot_count} of an attached arena, got {slot}")
        slot_bytes = session.granted.arena.slot_bytes
        if slot in session.held or generation <= session.generations.get(slot, -1) or batch.size_bytes > slot_bytes:
            raise ProtocolError(
                f"expected a free slot of a new generation and at most {slot_bytes} bytes,"
                f" got slot {slot} generation {generation} with {batch.size_bytes} bytes"
            )
        place = batch.place if session.places else slot
        if place >= (session.places or session.slot_count):
            raise ProtocolError(f"expected a place below {session.places} of a shared arena, got {place}")
        session.generations[slot] = session.held[slot] = generation
        session.mapping.refresh(place * slot_bytes, batch.size_bytes)  # written to, maybe, when it was another batch
        payload = session.mapping.view(place * slot_bytes, batch.size_bytes)
        self.ready.append(Lease(payload, batch, slot, generation))

    def _take_chunk(self, chunk: pb.Chunk) -> None:
        if self._assembling is None:
            raise ProtocolError(f"expected a batch before its chunks, got a chunk of batch {chunk.seq}")
        self._assembling.add(chunk)
        self._take_if_complete(self._assembling)

    def _take_if_complete(self, assembler: InlineAssembler) -> None:
        if assembler.complete:
            self._assembling = None
            self.ready.append(Lease(assembler.payload, assembler.batch, -1, 0))
