"""A scripted feedd for client tests: speaks feedd.proto and the arena socket, deterministic, fails on command.

It is strict about the contract where a real daemon may be lenient (``violations``), and it overwrites a slot the
moment it is released, so that a client that reads too late reads poison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from concurrent import futures
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc

import feedd_client  # noqa: F401 - sets gRPC's environment before gRPC is imported
from feedd_client._wire import feedd_pb2 as pb
from feedd_client._wire import feedd_pb2_grpc as stubs
from tests.budget import PATIENT_S
from tests.fakes.feed_arena import FakeArena
from tests.fakes.feed_data import SPECS
from tests.fakes.feed_script import FakeSession, Fault, Script, compose

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

POISON = 0xEE


def _alone(_self: object, _request: pb.LanesRequest, _context: object) -> pb.LanesResponse:
    """Answer that the node has one daemon."""
    return pb.LanesResponse(count=1)


class FakeFeed(stubs.FeedServicer):
    """The server. ``address`` is what a client dials; records what happened for tests to look at."""

    Lanes = _alone

    def __init__(self, socket_path: str, script: Script | None = None) -> None:
        self.socket_path = socket_path
        self.address = f"unix://{socket_path}"
        self.script = script or Script()
        self.arena_at = f"{socket_path}.arena"  # what Open says; the socket itself is where it is
        self.lock = threading.Condition()
        self.sessions: dict[str, FakeSession] = {}
        self.opens: list[pb.OpenRequest] = []
        self.starts: list[pb.StreamStart] = []
        self.releases: list[tuple[int, int]] = []
        self.request_count = 0  # messages of clients on their streams
        self.violations: list[str] = []
        self.lifelines_ended = self.holds_open = self.incarnation = 0
        self._session_count = 0
        self._fault_counts: dict[int, int] = {}
        self.refused_count = 0
        self.start()

    # ------------------------------------------------------------------ lifecycle

    def start(self) -> None:
        """Begin to listen."""
        self.incarnation += 1
        self._pool = futures.ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        stubs.add_FeedServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated
        assert self._server.add_insecure_port(f"unix:{self.socket_path}")
        self._server.start()
        self._arena = FakeArena(self, f"{self.socket_path}.arena")

    def stop(self) -> None:
        """End everything at once, as kill -9 would."""
        with self.lock:
            for session in self.sessions.values():
                session.closed = True
        self._arena.stop()
        self._server.stop(0).wait()
        self._pool.shutdown(cancel_futures=True)
        with self.lock:
            for session in self.sessions.values():
                session.free()
            self.sessions.clear()
            self.lock.notify_all()

    def restart(self) -> None:
        """Stop and start at the same place, knowing nothing."""
        self.stop()
        self.start()

    def wait_for(self, what: Callable[[], bool], timeout_s: float = PATIENT_S) -> None:
        """Wait until ``what`` holds."""
        with self.lock:
            assert self.lock.wait_for(what, timeout_s), "did not happen in time"

    @property
    def leased_count(self) -> int:
        """Slots in clients' hands."""
        return sum(len(session.leased) for session in self.sessions.values())

    # ------------------------------------------------------------------ rpc

    def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:  # noqa: N802 - gRPC's name
        """Grant a session."""
        with self.lock:
            self.lock.notify_all()
            if self.refused_count < len(self.script.open_errors):
                error = pb.Error(**self.script.open_errors[self.refused_count])
                self.refused_count += 1
                context.set_trailing_metadata((("feedd-error-bin", error.SerializeToString()),))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            self._session_count += 1
            session = FakeSession(self.script, request, self._session_count)
            self.sessions[session.id] = session
            self.opens.append(request)
            rank = request.topology.rank
        script = self.script
        response = pb.OpenResponse(
            version=pb.ProtocolVersion(major=script.major, minor=script.minor),
            session_id=session.id,
            specs=SPECS[script.specs],
            fingerprint=script.fingerprint_of(rank),
            slot_count=session.slot_count,
            daemon_id=f"daemon-{self.incarnation}",
            uneven=script.uneven or ("join" if request.uneven == "auto" else request.uneven),
            notices=[pb.Notice(**notice) for notice in script.notices],
        )
        if script.tell_steps:
            response.steps = script.steps_of(rank)
        if script.arena:
            arena = response.arena
            arena.socket_path, arena.token = self.arena_at, session.token
            arena.slot_bytes, arena.size_bytes = script.slot_bytes, script.slot_bytes * session.slot_count
        return response

    def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseResponse:  # noqa: N802 - gRPC's name
        """End a session."""
        with self.lock:
            session = self.sessions.pop(request.session_id, None)
            if session is not None:
                session.closed = True
                session.free()
            self.lock.notify_all()
        return pb.CloseResponse()

    def Stream(self, requests: Iterator[pb.StreamRequest], context: Any) -> Iterator[pb.StreamResponse]:  # noqa: N802 - gRPC's name
        """Serve one stream."""
        first = next(requests)
        with self.lock:
            session = self.sessions.get(first.start.session_id)
            self.starts.append(first.start)
        if session is None:
            gone = pb.Error(kind="not-found", message="the session is closed", object=first.start.session_id)
            context.set_trailing_metadata((("feedd-error-bin", gone.SerializeToString()),))
            context.abort(grpc.StatusCode.NOT_FOUND, gone.message)
            return
        with self.lock:  # a client that comes back: the former stream gives way
            session.turn += 1
            self.lock.notify_all()
            assert self.lock.wait_for(lambda: session.streams_open == 0, PATIENT_S)
            session.streams_open = 1
            session.credits = 0
            held = {one.slot: one.generation for one in first.start.held.leases}
            if not held.items() <= session.leased.items():
                self.violations.append(f"holds {held} of {session.leased}")
            session.leased = held
        self.absorb(session, first, session.turn)
        reader = threading.Thread(target=_read, args=(self, session, requests, session.turn), daemon=True)
        reader.start()
        context.add_callback(lambda: _notify(self.lock))
        try:
            if (yield from self._serve(session, first.start, context)):
                reader.join(5)  # the last releases; a client that half-closes ends the wait
        finally:
            with self.lock:
                session.streams_open = 0
                self.lock.notify_all()

    # ------------------------------------------------------------------ inside

    def _serve(
        self, session: FakeSession, start: pb.StreamStart, context: Any
    ) -> Generator[pb.StreamResponse, None, bool]:
        request, script = session.request, self.script
        steps, stride = script.steps_of(request.topology.rank), max(request.consumer_count, 1)
        step, seq, epoch, samples = start.next.step, 0, start.next.epoch, 0
        response = pb.StreamResponse()
        while step < steps:
            fault = self._due(step)
            if fault is not None and fault.kind in {"vanish", "eof", "error", "trailer"}:
                if response.batches:
                    yield response
                yield from _fail(fault, context)
                return False
            if fault is not None and fault.kind in {"slow", "hang"}:
                yield from _hang(fault, start.heartbeat_ms, context)
            if not self._claim(session, context, wait=not response.batches):
                if not response.batches:
                    return False
                yield response
                response = pb.StreamResponse()
                continue
            composed = self._batch(session, start, epoch, step, seq, fault)
            if composed is None:
                return False
            batch, chunks = composed
            if not epoch and step in script.later_notices:
                yield pb.StreamResponse(notices=[pb.Notice(**notice) for notice in script.later_notices[step]])
            samples += batch.rows
            response.batches.append(batch)
            if chunks or len(response.batches) >= script.coalesce:
                yield response
                response = pb.StreamResponse()
            yield from chunks
            step, seq = step + stride, seq + 1
        if response.batches:
            yield response
        yield pb.StreamResponse(end=pb.EndOfEpoch(epoch=epoch, steps=steps, samples=samples), known_steps=steps)
        return True

    def _claim(self, session: FakeSession, context: Any, *, wait: bool) -> bool:
        turn = session.turn

        def gone() -> bool:
            return session.ended(turn) or not context.is_active()

        with self.lock:
            if wait:
                self.lock.wait_for(lambda: session.credits > 0 or gone(), 30)
            if session.credits < 1 or gone():
                return False
            session.credits -= 1
            return True

    def _batch(
        self, session: FakeSession, start: pb.StreamStart, epoch: int, step: int, seq: int, fault: Fault | None
    ) -> tuple[pb.Batch, list[pb.StreamResponse]] | None:
        script, kind = self.script, fault.kind if fault is not None else ""
        batch, layout = compose(script, session.request, epoch, step)
        batch.seq = seq + (kind == "bad-seq")
        batch.cursor.epoch += kind == "wrong-epoch"
        if kind == "huge-inline":
            batch.inline, batch.size_bytes = True, 1 << 50
            return batch, []
        if start.inline_only or layout.size_bytes > script.slot_bytes:
            batch.inline = True
            payload = bytearray(layout.size_bytes)
            layout.into(payload)
            pieces = range(0, len(payload), 1000)
            return batch, [
                pb.StreamResponse(chunk=pb.Chunk(seq=seq, offset=at, data=bytes(payload[at : at + 1000])))
                for at in pieces
            ]
        with self.lock:
            if session.closed:  # whoever is killed here sends nothing: not a slot it did not fill
                return None
            slot = session.take(stale=kind == "stale-generation")
            if script.fill:
                layout.into(memoryview(session.map)[slot * script.slot_bytes : (slot + 1) * script.slot_bytes])
            self.lock.notify_all()
        batch.slot, batch.generation = slot + (99 if kind == "bad-slot" else 0), session.generations[slot]
        return batch, []

    def _due(self, step: int) -> Fault | None:
        for number, fault in enumerate(self.script.faults):
            if fault.step == step and self._fault_counts.get(number, 0) < fault.times:
                self._fault_counts[number] = self._fault_counts.get(number, 0) + 1
                return fault
        return None

    def absorb(self, session: FakeSession, request: pb.StreamRequest, turn: int) -> None:
        """Take in what a client sent."""
        with self.lock:
            self.request_count += 1
            if session.turn != turn or session.closed:
                return
            for release in request.releases:
                if session.leased.get(release.slot) == release.generation:
                    del session.leased[release.slot]
                    self.releases.append((release.slot, release.generation))
                    if self.script.fill:
                        start = release.slot * self.script.slot_bytes
                        session.map[start : start + 4096] = bytes([POISON]) * 4096
                elif not session.abandoned:
                    self.violations.append(f"stale release of slot {release.slot}")
            session.credits += request.credits
            if session.credits + (len(session.leased) if self.script.arena else 0) > session.slot_count:
                self.violations.append(f"{session.credits} credits with {len(session.leased)} slots leased")
            self.lock.notify_all()


def _read(feed: FakeFeed, session: FakeSession, requests: Iterator[pb.StreamRequest], turn: int) -> None:
    with contextlib.suppress(grpc.RpcError, Exception):
        for request in requests:
            feed.absorb(session, request, turn)
    session.half_closed = turn  # whoever waits for credits looks again
    _notify(feed.lock)


def _notify(lock: threading.Condition) -> None:
    with lock:
        lock.notify_all()


def _hang(fault: Fault, heartbeat_ms: int, context: Any) -> Iterator[pb.StreamResponse]:
    """Wait until the client has gone, or the fault's time is over."""
    gone = threading.Event()
    context.add_callback(gone.set)
    end_s = time.monotonic() + fault.delay_s
    period_s = heartbeat_ms / 1000 if fault.waiting_for else fault.delay_s
    while (left_s := end_s - time.monotonic()) > 0 and not gone.wait(min(period_s, left_s)):
        if fault.waiting_for:
            yield pb.StreamResponse(heartbeat=pb.Heartbeat(waiting_for=fault.waiting_for))


def _fail(fault: Fault, context: Any) -> Iterator[pb.StreamResponse]:
    error = pb.Error(**fault.error)
    if fault.kind == "error":
        yield pb.StreamResponse(error=error)
    elif fault.kind == "trailer":
        context.set_trailing_metadata((("feedd-error-bin", error.SerializeToString()),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
    elif fault.kind == "vanish":
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


def main() -> None:
    """Serve in a process of its own until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket_path")
    parser.add_argument("script", nargs="?", default="{}")
    arguments = parser.parse_args()
    told = json.loads(arguments.script)
    if isinstance(told.get("steps"), dict):  # JSON's keys are text
        told["steps"] = {int(rank): steps for rank, steps in told["steps"].items()}
    script = replace(Script(), **told)
    server = FakeFeed(arguments.socket_path, script)
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()
    print(json.dumps({"violations": server.violations, "opens": len(server.opens)}), flush=True)


if __name__ == "__main__":
    main()
