"""The simulated machine: streams, events, the schedule that decides when queued work runs, and graph capture."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE_COUNT: Final = 2
# What CUDA forbids to every thread while another thread captures a graph in "global" mode.
UNSAFE_IN_CAPTURE: Final = frozenset(
    {
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cudaEventSynchronize",
        "cudaEventQuery",
        "cudaStreamSynchronize",
    }
)
RELAXED: Final = 2  # cudaStreamCaptureModeRelaxed


@dataclass(frozen=True)
class Schedule:
    """When queued work runs: "eager", "lazy" or "random", for default streams and for all other streams."""

    default: str
    side: str
    seed: int = 0


SEEDS: Final = 5
SCHEDULES: Final = {
    "eager": Schedule("eager", "eager"),
    "lazy": Schedule("lazy", "lazy"),
    "late-consumer": Schedule("lazy", "eager"),
    "late-copies": Schedule("eager", "lazy"),
    **{f"random-{seed}": Schedule("random", "random", seed) for seed in range(SEEDS)},
}


class Marker:
    """A point in a stream's queue, and whether the stream has passed it."""

    __slots__ = ("done", "done_at", "stream")

    def __init__(self, stream: SimStream) -> None:
        self.done = False
        self.done_at = 0
        self.stream = stream


@dataclass(slots=True)
class Work:
    """One entry of a stream's queue: a marker to set, a marker to wait for, or a function to run.

    Attributes:
        host_range: pinned host memory that the function reads when it runs.
    """

    run: Callable[[], object] | None = None
    sets: Marker | None = None
    waits: Marker | None = None
    host_range: range = field(default_factory=lambda: range(0))


class SimStream:
    """``torch.cuda.Stream``."""

    _ids = itertools.count(1)

    def __init__(self, machine: Machine, index: int, policy: str, *, default: bool) -> None:
        self.machine = machine
        self.device = torch.device(machine.kind, index)
        self.stream_id = 0 if default else next(SimStream._ids)
        self.policy = policy
        self.queue: deque[Work] = deque()
        machine.streams.append(self)

    def __repr__(self) -> str:
        return f"<SimStream {self.stream_id} on {self.device}>"

    @property
    def device_index(self) -> int:
        """Number of the stream's device."""
        return int(self.device.index)

    @property
    def cuda_stream(self) -> int:
        """Address of the stream."""
        return self.stream_id

    def wait_event(self, event: SimEvent) -> None:
        """Let later work wait for what ``event`` was last recorded after."""
        if event.marker is not None:
            self.machine.launch(self, Work(waits=event.marker))

    def wait_stream(self, stream: SimStream) -> None:
        """Let later work wait for all work of ``stream``."""
        self.wait_event(stream.record_event())

    def record_event(self, event: SimEvent | None = None) -> SimEvent:
        """Record an event on this stream."""
        found = event or SimEvent(self.machine)
        found.record(self)
        return found

    def synchronize(self) -> None:
        """Run everything queued here."""
        self.machine.note("cudaStreamSynchronize")
        self.machine.run_until(lambda: not self.queue, self)

    def query(self) -> bool:
        """Tell whether nothing is queued."""
        return not self.queue


class SimEvent:
    """``torch.cuda.Event`` or ``torch.Event``; waiting for it captures what it was last recorded after."""

    def __init__(self, machine: Machine, *, blocking: bool = False, enable_timing: bool = False) -> None:
        self.marker: Marker | None = None
        self.blocking = blocking
        self.timed = enable_timing
        self.machine = machine
        machine.calls["cudaEventCreate"] += 1

    def record(self, stream: SimStream | None = None) -> None:
        """Record the event after everything queued on ``stream``."""
        where = stream or self.machine.current_stream()
        with self.machine.lock:
            self.marker = Marker(where)
            self.machine.launch(where, Work(sets=self.marker))

    def wait(self, stream: SimStream | None = None) -> None:
        """Let a stream wait for the event."""
        (stream or self.machine.current_stream()).wait_event(self)

    def query(self) -> bool:
        """Tell whether the event has happened."""
        self.machine.note("cudaEventQuery")
        return self.marker is None or self.marker.done

    def elapsed_time(self, end: SimEvent) -> float:
        """Return how many entries of all queues ran between both events.

        Raises:
            RuntimeError: an event has not happened, or was not made to measure time.
        """
        begun, ended = self.marker, end.marker
        if begun is None or ended is None or not (begun.done and ended.done and self.timed and end.timed):
            raise RuntimeError("Both events must be recorded and completed before calculating elapsed time.")
        return float(ended.done_at - begun.done_at)

    def synchronize(self) -> None:
        """Run what the event was recorded after."""
        self.machine.note("cudaEventSynchronize")
        self.machine.calls["waits that spin"] += not self.blocking
        marker = self.marker
        if marker is not None:
            self.machine.run_until(lambda: marker.done, marker.stream)


class _ThreadState(threading.local):
    """What CUDA keeps per thread."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, SimStream] = {}
        self.capture_mode = 0


class Machine:
    """Two devices and their queues.

    Attributes:
        calls: how often each CUDA function was called.
        violations: what a program must never do and did; a test ends with none.
        capture_owner: the thread that captures a graph in "global" mode.
        defaults: each device's default stream.
        kind: type of the devices, "cuda" or another accelerator.
        ran: entries of all queues that have run.
        capture_breaks: calls by other threads that broke the running capture.
    """

    def __init__(self, schedule: Schedule, kind: str = "cuda") -> None:
        self.kind = kind
        self.ran = 0
        self.schedule = schedule
        self.lock = threading.RLock()
        self.calls: Counter[str] = Counter()
        self.violations: list[str] = []
        self.streams: list[SimStream] = []
        self.capture_owner: int | None = None
        self.capture_breaks: list[str] = []
        self.thread = _ThreadState()
        self._random = random.Random(schedule.seed)
        self.defaults = [SimStream(self, index, schedule.default, default=True) for index in range(DEVICE_COUNT)]

    def allows(self, name: str) -> bool:
        """Count a CUDA call; False: another thread captures a graph, and this thread has not relaxed its mode."""
        with self.lock:
            self.calls[name] += 1
            foreign = self.capture_owner not in {None, threading.get_ident()}
            if foreign and name in UNSAFE_IN_CAPTURE and self.thread.capture_mode != RELAXED:
                self.capture_breaks.append(f"{name} in {threading.current_thread().name}")
                return False
        return True

    def note(self, name: str) -> None:
        """Count a CUDA call.

        Raises:
            RuntimeError: the running capture of another thread forbids it.
        """
        if not self.allows(name):
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({name})")

    # ------------------------------------------------------------------ devices and streams

    def index_of(self, device: Any) -> int:
        """Return the number of a device however it is named; None is the thread's current one."""
        if device is None:
            return self.thread.device
        index = device if isinstance(device, int) else torch.device(device).index
        return self.thread.device if index is None else int(index)

    def stream(self, device: Any = None, priority: int = 0) -> SimStream:
        """Make a stream."""
        return SimStream(self, self.index_of(device), self.schedule.side, default=False)

    def current_stream(self, device: Any = None) -> SimStream:
        """Return the calling thread's current stream of a device."""
        index = self.index_of(device)
        return self.thread.streams.get(index) or self.defaults[index]

    def set_device(self, device: Any) -> None:
        """Make a device current in the calling thread."""
        self.thread.device = self.index_of(device)

    @contextlib.contextmanager
    def on_device(self, device: Any) -> Iterator[None]:
        """Make a device current for a while."""
        before, self.thread.device = self.thread.device, self.index_of(device)
        try:
            yield
        finally:
            self.thread.device = before

    @contextlib.contextmanager
    def on_stream(self, stream: SimStream | None) -> Iterator[None]:
        """Make a stream and its device current for a while."""
        if stream is None:
            yield
            return
        index = stream.device_index
        before = self.thread.streams.get(index, self.defaults[index])
        self.thread.streams[index] = stream
        try:
            with self.on_device(index):
                yield
        finally:
            self.thread.streams[index] = before

    # ------------------------------------------------------------------ when work runs

    def launch(self, stream: SimStream, work: Work) -> None:
        """Queue work; after each launch the devices may run something, as the schedule says."""
        with self.lock:
            stream.queue.append(work)
            for other in self.streams:
                while other.policy == "eager" and _may_run(other):
                    _run_next(other)
            free = [other for other in self.streams if other.policy == "random" and _may_run(other)]
            for _ in range(self._random.randrange(3)):
                if free:
                    _run_next(self._random.choice(free))
                    free = [other for other in free if _may_run(other)]

    def run_until(self, done: Callable[[], bool], stream: SimStream, seen: set[int] | None = None) -> None:
        """Run what is queued on ``stream``, and what that waits for, until ``done``; ``seen``: waits it is part of."""
        with self.lock:
            while not done():
                self._advance(stream, set(seen or ()))

    def synchronize(self, device: Any = None) -> None:
        """Run everything."""
        self.note("cudaStreamSynchronize")
        with self.lock:
            for stream in list(self.streams):
                while stream.queue:
                    self._advance(stream, set())

    def _advance(self, stream: SimStream, seen: set[int]) -> None:
        if not stream.queue:
            return
        marker = stream.queue[0].waits
        if marker is None or marker.done:
            _run_next(stream)
            return
        assert id(marker) not in seen, "deadlock on the device"
        seen.add(id(marker))
        self.run_until(lambda: marker.done, marker.stream, seen)

    # ------------------------------------------------------------------ graph capture

    @contextlib.contextmanager
    def capturing(self, graph: object = None, **_options: Any) -> Iterator[None]:
        """Stand in for ``torch.cuda.graph``: fail at the end if another thread broke the capture.

        Raises:
            RuntimeError: another thread made a call that global capture mode forbids.
        """
        with self.lock:
            self.capture_owner, self.capture_breaks = threading.get_ident(), []
        try:
            with self.on_stream(self.stream()):
                yield
        finally:
            with self.lock:
                self.capture_owner = None
        if self.capture_breaks:
            raise RuntimeError(f"CUDA error: capture was invalidated by {self.capture_breaks}")


def _may_run(stream: SimStream) -> bool:
    if not stream.queue:
        return False
    waits = stream.queue[0].waits
    return waits is None or waits.done


def _run_next(stream: SimStream) -> None:
    work = stream.queue.popleft()
    stream.machine.ran += 1
    if work.sets is not None:
        work.sets.done, work.sets.done_at = True, stream.machine.ran
    if work.run is not None:
        with torch.no_grad():
            work.run()
