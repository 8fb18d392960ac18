"""A shard fetcher over objects in memory, with gates to stop at and faults to fall over."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from feedd.errors import NotFound
from feedd.values import ByteRange, ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.sinks import write_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink

ROOT = "s3://bucket"


class MemoryFetcher:
    """Copies objects from memory.

    ``hold`` makes fetches of an object wait until ``release``; ``linger`` makes cancelled ones take their time;
    ``fail`` makes the next ones raise after they have written half of the target.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.cancelled: Counter[str] = Counter()
        self.running: set[str] = set()
        self.running_peak = 0
        self._data: dict[ObjectRef, bytes] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._lingering: dict[str, asyncio.Event] = {}
        self._faults: defaultdict[str, deque[Exception]] = defaultdict(deque)

    def put(self, key: str, data: bytes, etag: str = "v1") -> ObjectRef:
        """Store a version of an object and return its ref."""
        ref = ObjectRef(ROOT, key, len(data), etag)
        self._data[ref] = data
        return ref

    def data(self, ref: ObjectRef) -> bytes:
        """Return what was stored."""
        return self._data[ref]

    def hold(self, *refs: ObjectRef) -> None:
        """Let fetches of these wait in mid-flight."""
        for ref in refs:
            self._gates[ref.key] = asyncio.Event()

    def release(self, *refs: ObjectRef) -> None:
        """Let them go on."""
        for ref in refs:
            self._gates.pop(ref.key).set()

    def linger(self, ref: ObjectRef) -> asyncio.Event:
        """Let cancelled fetches of this one take until the event is set to end."""
        return self._lingering.setdefault(ref.key, asyncio.Event())

    def fail(self, ref: ObjectRef, *errors: Exception) -> None:
        """Let the next fetches of this one raise these, one each."""
        self._faults[ref.key].extend(errors)

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        self.calls[ref.key] += 1
        self.order.append(ref.key)
        self.running.add(ref.key)
        self.running_peak = max(self.running_peak, len(self.running))
        try:
            data = self._data.get(ref)
            if data is None:
                raise NotFound("expected an object, got none", object=ref.url, stage="source")
            assert sink.size_bytes == ref.size_bytes
            half = len(data) // 2
            write_to(sink, 0, data[:half])
            await asyncio.sleep(0)
            gate = self._gates.get(ref.key)
            if gate is not None:
                await gate.wait()
            if self._faults[ref.key]:
                raise self._faults[ref.key].popleft()
            write_to(sink, half, data[half:])
            if watch is not None:
                watch.arrived(ByteRange(0, len(data)), sink)
        except asyncio.CancelledError:
            self.cancelled[ref.key] += 1
            if ref.key in self._lingering:
                await self._lingering[ref.key].wait()
            raise
        finally:
            self.running.discard(ref.key)


async def until(met: Callable[[], object], limit_s: float = PATIENT_S) -> None:
    """Return once ``met()`` holds; for waiting on state, never for measuring time."""
    async with asyncio.timeout(limit_s):
        while not met():  # noqa: ASYNC110 - state of threads and files has no event to wait for
            await asyncio.sleep(0.001)
