"""A scripted feedd for client tests: speaks feedd.proto and the arena socket, deterministic, fails on command.

It is strict about the contract where a real daemon may be lenient (``violations``), and it overwrites a slot the
moment it is released, so that a client that reads too late reads poison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import socket
import sys
import threading
from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

import feedd_client  # noqa: F401 - sets gRPC's environment before gRPC is imported
from feedd_client._wire import feedd_pb2 as pb
from feedd_client._wire import feedd_pb2_grpc as stubs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POISON = 0xEE
SPECS = {
    "rich": [
        pb.TensorSpec(name="img", kind=pb.TensorSpec.DENSE, dtype="uint8", shape=[4, 6, 3]),
        pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64"),
        pb.TensorSpec(name="raw", kind=pb.TensorSpec.RAGGED, dtype="uint8", ndim=1),
        pb.TensorSpec(name="mat", kind=pb.TensorSpec.RAGGED, dtype="float32", ndim=2),
        pb.TensorSpec(name="__key__", kind=pb.TensorSpec.TEXT, dtype="uint8"),
        pb.TensorSpec(name="meta", kind=pb.TensorSpec.JSON, dtype="uint8"),
    ],
    "ids": [pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64")],
    "image": [
        pb.TensorSpec(name="jpg", kind=pb.TensorSpec.DENSE, dtype="uint8", shape=[224, 224, 3]),
        pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64"),
    ],
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong when the batch at ``step`` is due; once, unless ``times`` says more.

    Kinds: vanish, eof, error (in-band), trailer, slow, bad-seq, wrong-epoch, stale-generation, bad-slot, huge-inline.
    """

    step: int
    kind: str
    times: int = 1
    error: dict[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(frozen=True)
class Script:
    """What the server serves. ``steps`` may differ by rank; ``last_rows`` is the size of each rank's last batch."""

    steps: int | dict[int, int] = 5
    last_rows: int | None = None
    specs: str = "rich"
    slot_count: int = 4
    slot_bytes: int = 1 << 16
    arena: bool = True
    tell_steps: bool = False
    fill: bool = True
    coalesce: int = 1
    fingerprints: dict[int, bytes] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    open_errors: tuple[dict[str, Any], ...] = ()
    major: int = 1

    def steps_of(self, rank: int) -> int:
        """Steps of one rank."""
        return self.steps if isinstance(self.steps, int) else self.steps[rank]


def sample_ids(epoch: int, step: int, rows: int, batch_size: int, topology: pb.Topology) -> np.ndarray[Any, Any]:
    """Ids of the samples of one batch; unique per epoch, node and position."""
    first = (step * max(topology.local_world_size, 1) + topology.local_rank) * batch_size
    return first + np.arange(rows, dtype=np.int64) + topology.node_rank * 1_000_000 + epoch * 100_000_000


def image_of(sample_id: int) -> np.ndarray[Any, Any]:
    """The ``img`` field of one sample."""
    return ((sample_id * 7 + np.arange(72)) % 251).astype(np.uint8).reshape(4, 6, 3)


class Layout:
    """Lays fields into one payload, each part 64-byte aligned."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, bytes]] = []
        self.size_bytes = 0

    def put(self, data: np.ndarray[Any, Any] | bytes) -> int:
        """Append; return where."""
        raw = data if isinstance(data, bytes) else data.tobytes()
        at = self.size_bytes
        self._parts.append((at, raw))
        self.size_bytes = -(-(at + len(raw)) // 64) * 64
        return at

    def region(self, values: list[np.ndarray[Any, Any]] | list[bytes], shapes: list[Any] | None = None) -> Any:
        """Append a ragged or text field."""
        raws = [one if isinstance(one, bytes) else one.tobytes() for one in values]
        item = 1 if isinstance(values[0], bytes) else values[0].itemsize
        ends = np.cumsum([0, *(len(raw) // item for raw in raws)]).astype(np.int64)
        values_at = self.put(b"".join(raws))
        region = pb.FieldRegion(values_at=values_at, values_bytes=sum(map(len, raws)), offsets_at=self.put(ends))
        if shapes is not None:
            region.shapes_at = self.put(np.array(shapes, np.int64))
        return region

    def into(self, target: memoryview | bytearray) -> None:
        """Write everything."""
        for at, raw in self._parts:
            target[at : at + len(raw)] = raw


def lay_out(specs: str, ids: np.ndarray[Any, Any]) -> tuple[Layout, list[Any]]:
    """Lay out one batch."""
    layout, regions = Layout(), []
    numbers = [int(one) for one in ids]
    for spec in SPECS[specs]:
        if spec.name == "img":
            images = np.stack([image_of(one) for one in numbers])
            regions.append(pb.FieldRegion(values_at=layout.put(images), values_bytes=images.nbytes))
        elif spec.name == "cls":
            regions.append(pb.FieldRegion(values_at=layout.put(ids), values_bytes=ids.nbytes))
        elif spec.name == "raw":
            regions.append(layout.region([bytes([one % 256]) * (one % 5 + 1) for one in numbers]))
        elif spec.name == "mat":
            mats = [np.full((one % 3 + 1, 2), one % 1000, np.float32) for one in numbers]
            regions.append(layout.region(mats, [mat.shape for mat in mats]))
        elif spec.name == "meta":
            regions.append(layout.region([json.dumps({"id": one}).encode() for one in numbers]))
        else:
            regions.append(layout.region([f"sample-{one:09d}".encode() for one in numbers]))
    return layout, regions


class FakeSession:
    """One Open: its arena and who holds which slot."""

    def __init__(self, server: FakeFeed, request: pb.OpenRequest, number: int) -> None:
        self.id = f"session-{number}"
        self.request = request
        script = server.script
        self.slot_count = max(1, min(script.slot_count, request.prefetch_batches))
        self.token = os.urandom(16)
        self.fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.slot_count * script.slot_bytes)
        self.map = mmap.mmap(self.fd, self.slot_count * script.slot_bytes)
        self.generations = [0] * self.slot_count
        self.leased: dict[int, int] = {}
        self.credits = 0
        self.closed = False
        self.streams_open = 0

    def free(self) -> None:
        """Let go of the memory."""
        if self.fd >= 0:
            self.map.close()
            os.close(self.fd)
            self.fd = -1


class FakeFeed(stubs.FeedServicer):
    """The server. ``address`` is what a client dials; records what happened for tests to look at."""

    def __init__(self, socket_path: str, script: Script | None = None) -> None:
        self.socket_path = socket_path
        self.address = f"unix://{socket_path}"
        self.script = script or Script()
        self.lock = threading.Condition()
        self.sessions: dict[str, FakeSession] = {}
        self.opens: list[pb.OpenRequest] = []
        self.starts: list[pb.StreamStart] = []
        self.releases: list[tuple[int, int]] = []
        self.violations: list[str] = []
        self.lifelines_ended = 0
        self.holds_open = 0
        self.incarnation = 0
        self._session_count = 0
        self._fault_counts: dict[int, int] = {}
        self._open_error_count = 0
        self.start()

    # ------------------------------------------------------------------ lifecycle

    def start(self) -> None:
        """Begin to listen."""
        self.incarnation += 1
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        stubs.add_FeedServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated
        assert self._server.add_insecure_port(f"unix:{self.socket_path}")
        self._server.start()
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            Path(f"{self.socket_path}.arena").unlink()
        self._unix.bind(f"{self.socket_path}.arena")
        self._unix.listen(32)
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, args=(self._unix,), daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        """End everything at once, as kill -9 would."""
        with contextlib.suppress(OSError):
            self._unix.shutdown(socket.SHUT_RDWR)
        self._unix.close()
        for one in self._connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.stop(0).wait()
        for thread in self._threads:
            thread.join(5)
        with self.lock:
            for session in self.sessions.values():
                session.closed = True
                session.free()
            self.sessions.clear()
            self.lock.notify_all()

    def restart(self) -> None:
        """Stop and start at the same place, knowing nothing."""
        self.stop()
        self.start()

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 10.0) -> None:
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
            if self._open_error_count < len(self.script.open_errors):
                error = pb.Error(**self.script.open_errors[self._open_error_count])
                self._open_error_count += 1
                context.set_trailing_metadata((("feedd-error-bin", error.SerializeToString()),))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            self._session_count += 1
            session = FakeSession(self, request, self._session_count)
            self.sessions[session.id] = session
            self.opens.append(request)
            rank = request.topology.rank
            self.lock.notify_all()
        script = self.script
        response = pb.OpenResponse(
            version=pb.ProtocolVersion(major=script.major),
            session_id=session.id,
            specs=SPECS[script.specs],
            fingerprint=script.fingerprints.get(rank, b"fake-fingerprint"),
            slot_count=session.slot_count,
            daemon_id=f"daemon-{self.incarnation}",
        )
        if script.tell_steps:
            response.steps = script.steps_of(rank)
        if script.arena:
            response.arena.socket_path = f"{self.socket_path}.arena"
            response.arena.token = session.token
            response.arena.slot_bytes = script.slot_bytes
            response.arena.size_bytes = script.slot_bytes * session.slot_count
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

    def Stream(self, requests: Iterator[pb.StreamRequest], context: Any) -> Iterator[pb.StreamResponse]:  # noqa: N802
        """Serve one stream."""
        first = next(requests)
        with self.lock:
            session = self.sessions.get(first.start.session_id)
            self.starts.append(first.start)
        if session is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            return
        session.streams_open += 1
        if session.streams_open > 1:
            self.violations.append("two streams on one session")
        session.credits = 0
        self._absorb(session, first, first_message=True)
        reader = threading.Thread(target=self._read, args=(session, requests), daemon=True)
        reader.start()
        context.add_callback(self._wake)
        try:
            yield from self._serve(session, first.start, context)
            reader.join(5)
        finally:
            session.streams_open -= 1

    # ------------------------------------------------------------------ inside

    def _serve(self, session: FakeSession, start: pb.StreamStart, context: Any) -> Iterator[pb.StreamResponse]:
        request, script = session.request, self.script
        steps, stride = script.steps_of(request.topology.rank), max(request.consumer_count, 1)
        step, seq, epoch, samples = start.next.step, 0, start.next.epoch, 0
        response = pb.StreamResponse()
        while step < steps:
            fault = self._due(step)
            if fault is not None and fault.kind in {"vanish", "eof", "error", "trailer"}:
                if response.batches:
                    yield response
                yield from self._fail(fault, context)
                return
            if fault is not None and fault.kind == "slow":
                threading.Event().wait(fault.delay_s)
            if not self._claim(session, context, wait=not response.batches):
                if not response.batches:
                    return
                yield response
                response = pb.StreamResponse()
                continue
            batch, chunks = self._batch(session, start, epoch, step, seq, fault)
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

    def _claim(self, session: FakeSession, context: Any, *, wait: bool) -> bool:
        def ready() -> bool:
            return session.credits > 0 or session.closed or not context.is_active()

        with self.lock:
            if wait:
                self.lock.wait_for(ready, 30)
            if session.credits < 1 or session.closed:
                return False
            session.credits -= 1
            return True

    def _batch(
        self, session: FakeSession, start: pb.StreamStart, epoch: int, step: int, seq: int, fault: Fault | None
    ) -> tuple[pb.Batch, list[pb.StreamResponse]]:
        request, script = session.request, self.script
        size, last = request.recipe.batch_size, step == script.steps_of(request.topology.rank) - 1
        rows = script.last_rows if last and script.last_rows is not None else size
        layout, regions = (
            lay_out(script.specs, sample_ids(epoch, step, rows, size, request.topology))
            if script.fill
            else blank(script.specs, rows)
        )
        cursor = pb.Cursor(epoch=epoch, step=step, anchor_window=step // 2, anchor_sample=step // 2 * 2 * size)
        batch = pb.Batch(seq=seq, cursor=cursor, rows=rows, regions=regions, size_bytes=layout.size_bytes)
        kind = fault.kind if fault is not None else ""
        batch.seq += kind == "bad-seq"
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
            free = [slot for slot in range(session.slot_count) if slot not in session.leased]
            if not free:
                self.violations.append("credit without a free slot")
                free = [0]
            slot = min(free, key=lambda one: session.generations[one])
            session.generations[slot] += kind != "stale-generation"
            session.leased[slot] = session.generations[slot]
        if script.fill and not session.closed:
            layout.into(memoryview(session.map)[slot * script.slot_bytes : (slot + 1) * script.slot_bytes])
        batch.slot, batch.generation = slot + (99 if kind == "bad-slot" else 0), session.generations[slot]
        return batch, []

    def _due(self, step: int) -> Fault | None:
        for number, fault in enumerate(self.script.faults):
            if fault.step == step and self._fault_counts.get(number, 0) < fault.times:
                self._fault_counts[number] = self._fault_counts.get(number, 0) + 1
                return fault
        return None

    def _fail(self, fault: Fault, context: Any) -> Iterator[pb.StreamResponse]:
        error = pb.Error(**fault.error)
        if fault.kind == "error":
            yield pb.StreamResponse(error=error)
        elif fault.kind == "trailer":
            context.set_trailing_metadata((("feedd-error-bin", error.SerializeToString()),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        elif fault.kind == "vanish":
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def _read(self, session: FakeSession, requests: Iterator[pb.StreamRequest]) -> None:
        with contextlib.suppress(grpc.RpcError, Exception):
            for request in requests:
                self._absorb(session, request, first_message=False)

    def _absorb(self, session: FakeSession, request: pb.StreamRequest, *, first_message: bool) -> None:
        with self.lock:
            for release in request.releases:
                if session.leased.get(release.slot) == release.generation:
                    del session.leased[release.slot]
                    self.releases.append((release.slot, release.generation))
                    if self.script.fill and not session.closed:
                        start = release.slot * self.script.slot_bytes
                        session.map[start : start + 4096] = bytes([POISON]) * 4096
                elif not first_message and not session.closed:
                    self.violations.append(f"stale release of slot {release.slot}")
            session.credits += request.credits
            if session.credits + (len(session.leased) if self.script.arena else 0) > session.slot_count:
                self.violations.append(f"{session.credits} credits with {len(session.leased)} slots leased")
            self.lock.notify_all()

    def _wake(self) -> None:
        with self.lock:
            self.lock.notify_all()

    # ------------------------------------------------------------------ arena socket

    def _accept(self, unix: socket.socket) -> None:
        while True:
            try:
                connection, _ = unix.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._attend, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _attend(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            greeting = connection.recv(21, socket.MSG_WAITALL)
            session = next((one for one in list(self.sessions.values()) if greeting == b"ARENA" + one.token), None)
            if session is not None:
                socket.send_fds(connection, [b"\x01"], [session.fd])
            else:
                connection.sendall(b"\x01" if greeting[:5] == b"HOLD!" else b"\x00")
            with self.lock:
                self.holds_open += greeting[:5] == b"HOLD!"
                self.lock.notify_all()
            with contextlib.suppress(OSError):
                connection.recv(1)
            with self.lock:
                self.holds_open -= greeting[:5] == b"HOLD!"
                if session is not None:
                    self.lifelines_ended += 1
                    session.leased.clear()
                self.lock.notify_all()


def blank(specs: str, rows: int) -> tuple[Layout, list[Any]]:
    """A batch whose bytes nobody writes, for measuring the hand-off alone."""
    layout, regions = Layout(), []
    for spec in SPECS[specs]:
        size = rows * int(np.prod([*spec.shape, np.dtype(spec.dtype).itemsize]))
        regions.append(pb.FieldRegion(values_at=layout.size_bytes, values_bytes=size))
        layout.size_bytes = -(-(layout.size_bytes + size) // 64) * 64
    return layout, regions


def main() -> None:
    """Serve in a process of its own until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket_path")
    parser.add_argument("script", nargs="?", default="{}")
    arguments = parser.parse_args()
    script = replace(Script(), **json.loads(arguments.script))
    server = FakeFeed(arguments.socket_path, script)
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()
    print(json.dumps({"violations": server.violations, "opens": len(server.opens)}), flush=True)


if __name__ == "__main__":
    main()
