"""Verifies whole objects, while they are fetched, against the store's checksum, from parts that arrive in any order."""

from __future__ import annotations

import base64
import bisect
import hashlib
import itertools
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from awscrt import checksums as crt

from feedd.errors import BadRequest, BadResponse, PermissionDenied, Unsupported
from feedd.flow.pools import CACHE_DISK, CPU
from feedd.flow.tasks import run_to_end
from feedd.metrics import FETCH_DAMAGED
from feedd.units import MIB
from feedd.values import ByteRange

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from feedd.errors import FeeddError
    from feedd.fetch.scheduler import FetchEntry
    from feedd.protocols import FetchWatch, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef

_STRIDE_BYTES = 4 * MIB  # bytes digested between two checks for cancellation
_FETCHES_MAX = 3
_TOLD_MAX = 4  # senders named in messages
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Crc:
    """A checksum that can be computed piecewise and combined.

    Attributes:
        on_arrival: fast enough (25 GiB/s) for the event loop while the bytes are in the CPU cache. The others are
            computed at the end, on a thread.
    """

    size_bytes: int
    update: Callable[[memoryview, int], int]
    combine: Callable[[int, int, int], int]
    on_arrival: bool = True

    def of(self, data: Iterable[memoryview]) -> bytes:
        value = 0
        for stride in data:
            value = self.update(stride, value)
        return value.to_bytes(self.size_bytes, "big")

    def join(self, pieces: Iterable[tuple[ByteRange, bytes]]) -> bytes:
        value = 0
        for span, digest in pieces:
            value = self.combine(value, int.from_bytes(digest, "big"), span.size_bytes)
        return value.to_bytes(self.size_bytes, "big")


@dataclass(frozen=True, slots=True)
class _Hash:
    """A cryptographic hash, which needs a whole part from its first byte on."""

    new: Callable[[], Any]  # hashlib's own type has no public name
    on_arrival: bool = False

    def of(self, data: Iterable[memoryview]) -> bytes:
        state = self.new()
        for stride in data:
            state.update(stride)
        digest: bytes = state.digest()
        return digest

    def join(self, pieces: Iterable[tuple[ByteRange, bytes]]) -> bytes:
        found = [digest for _, digest in pieces]
        assert len(found) <= 1, "pieces of a hash cannot be joined"
        return found[0] if found else self.of(())


_ALGORITHMS: Mapping[str, _Crc | _Hash] = {
    "crc64nvme": _Crc(8, crt.crc64nvme, crt.combine_crc64nvme),
    "crc32c": _Crc(4, crt.crc32c, crt.combine_crc32c),
    # zlib's CRC-32 is the faster of the two; at 2 GiB/s both would block the loop
    "crc32": _Crc(4, zlib.crc32, crt.combine_crc32, on_arrival=False),
    "sha256": _Hash(hashlib.sha256),
    "sha1": _Hash(lambda: hashlib.sha1(usedforsecurity=False)),
}
ALGORITHMS: tuple[str, ...] = tuple(_ALGORITHMS)
"""Algorithms that can be verified, in order of preference: strong enough, then cheap."""


def digest_of(algorithm: str, data: bytes | memoryview) -> bytes:
    """Return the digest of ``data`` in the stores' format: CRCs are big-endian."""
    return _ALGORITHMS[algorithm].of([memoryview(data)])


class Verification:
    """One object being fetched, and its expected checksum.

    Arriving bytes are digested in pieces; for a composite checksum, the pieces end at the borders of the store's parts.
    ``finish`` digests the rest. So parts may have any size and may arrive again.

    Args:
        ref: the object.
        expected: the result of ``ObjectStore.checksum``; None: nothing is verified.
    """

    def __init__(self, ref: ObjectRef, expected: ObjectChecksum | None) -> None:
        self._expected = expected
        self._whole = ByteRange(0, ref.size_bytes)
        sizes = expected.part_sizes if expected is not None and expected.part_sizes else (ref.size_bytes,)
        assert sum(sizes) == ref.size_bytes, "the parts must make up the object"
        self._edges = [0, *itertools.accumulate(sizes)]
        self._algorithm = _ALGORITHMS[expected.algorithm] if expected is not None else None
        self._starts: list[int] = []  # sorted starts of the digested spans
        self._digested: dict[int, tuple[ByteRange, bytes]] = {}
        self._got = b""
        self._bad: tuple[int, ...] = ()

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        """Record a part; a span that arrives again replaces earlier digests. Spans may have any order and size."""
        if self._algorithm is None or not span.size_bytes:
            return
        self._forget(span)
        if self._algorithm.on_arrival and not part.waits_for_disk:  # else a thread digests the bytes at the end
            for cut in self._split(span):
                self._note(cut, self._algorithm.of(part.part(cut.start - span.start, cut.end - span.start).read()))

    async def finish(self, sink: RangeSink) -> tuple[ByteRange, ...]:
        """Return the spans to fetch again, which are none if the object is good.

        For a composite checksum with known parts, the spans are the differing parts, else the whole object. May be
        called again after they arrived. ``sink`` holds the whole object.
        """
        if self._algorithm is None or self._expected is None:
            return ()
        missing = self._missing()
        if missing:
            for span, digest in zip(missing, await _digests(self._algorithm, sink, missing), strict=True):
                self._note(span, digest)
        parts = list(itertools.pairwise(self._edges))
        digests = [self._algorithm.join(self._within(start, end)) for start, end in parts]
        composite = bool(self._expected.part_sizes)
        self._got = self._algorithm.of([memoryview(b"".join(digests))]) if composite else digests[0]
        if self._got == self._expected.digest:
            self._bad = ()
            return ()
        known = self._expected.part_digests or digests
        self._bad = tuple(i for i, (got, want) in enumerate(zip(digests, known, strict=True)) if got != want)
        return tuple(ByteRange(*parts[i]) for i in self._bad) or (self._whole,)

    def describe(self) -> str:
        """Return algorithm, expected and got digest in the stores' format; for messages, after ``finish``."""
        if self._expected is None:
            return "no checksum stored"
        count = len(self._expected.part_sizes)
        suffix = f"-{count}" if count else ""
        text = f"expected {self._expected.algorithm} {_base64(self._expected.digest)}{suffix}"
        text += f", got {_base64(self._got)}{suffix}"
        numbers = ", ".join(str(i + 1) for i in self._bad[:8])
        return text + (f" (parts that differ: {numbers}{', ...' * (len(self._bad) > 8)})" if numbers else "")

    def _forget(self, span: ByteRange) -> None:
        """Drop the digests of any byte of ``span``."""
        low = max(0, bisect.bisect_right(self._starts, span.start) - 1)
        high = bisect.bisect_left(self._starts, span.end)
        for start in self._starts[low:high]:
            if self._digested[start][0].end > span.start:
                del self._digested[start]
        self._starts[low:high] = [start for start in self._starts[low:high] if start in self._digested]

    def _note(self, span: ByteRange, digest: bytes) -> None:
        bisect.insort(self._starts, span.start)
        self._digested[span.start] = (span, digest)

    def _split(self, span: ByteRange) -> list[ByteRange]:
        """Split a span at the borders of the store's parts."""
        low = bisect.bisect_right(self._edges, span.start)
        high = bisect.bisect_left(self._edges, span.end)
        points = [span.start, *dict.fromkeys(self._edges[low:high]), span.end]  # an empty part repeats an edge
        return [ByteRange(start, end) for start, end in itertools.pairwise(points)]

    def _missing(self) -> list[ByteRange]:
        """Return the spans without a digest."""
        found, at = [], 0
        for start in self._starts:
            if start > at:
                found += self._split(ByteRange(at, start))
            at = self._digested[start][0].end
        return found + (self._split(ByteRange(at, self._whole.end)) if at < self._whole.end else [])

    def _within(self, start: int, end: int) -> list[tuple[ByteRange, bytes]]:
        low, high = bisect.bisect_left(self._starts, start), bisect.bisect_left(self._starts, end)
        return [self._digested[at] for at in self._starts[low:high]]


async def _digests(algorithm: _Crc | _Hash, sink: RangeSink, spans: Sequence[ByteRange]) -> list[bytes]:
    """Digest on a thread and wait for its end even if cancelled, because it reads the caller's memory until then."""
    stop = threading.Event()
    pool = CACHE_DISK if sink.waits_for_disk else CPU
    job = pool.begin(_digest_all, algorithm, sink, spans, stop)
    return await run_to_end(job, stop)


def _digest_all(
    algorithm: _Crc | _Hash, sink: RangeSink, spans: Sequence[ByteRange], stop: threading.Event
) -> list[bytes]:
    return [algorithm.of(_strides(sink, span, stop)) for span in spans]


def _strides(sink: RangeSink, span: ByteRange, stop: threading.Event) -> Iterable[memoryview]:
    for start in range(span.start, span.end, _STRIDE_BYTES):
        if stop.is_set():
            return
        yield from sink.part(start, min(start + _STRIDE_BYTES, span.end)).read()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


class Arrivals:
    """The arrived parts of one object; passes them to the watch, and to the verification once there is one.

    Attributes:
        ref: the object.
        watch: observer of the fetch.
        sink: where the object's bytes go.
        many: its parts are separate objects.
    """

    many = False

    def __init__(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None) -> None:
        self.ref = ref
        self.watch = watch
        self.sink = sink
        self._verification: Verification | None = None
        self._answered: dict[str, None] = {}  # an ordered set

    async def ask(self, store: ObjectStore, whole: asyncio.Event, unverified: set[str]) -> None:
        """Get the checksum; parts that arrive before the answer are digested at the end.

        A refusal counts only once the object itself has arrived. A HEAD does not tell the reason, and if credentials
        expired, the parts' requests find others.

        Args:
            store: the object's store.
            whole: set when all parts have arrived.
            unverified: roots whose checksums may not be read; this root is added, and logged, in that case.
        """
        try:
            try:
                expected = await store.checksum(self.ref)
            except (BadRequest, PermissionDenied):
                if store.root in unverified:
                    return
                await whole.wait()
                expected = await store.checksum(self.ref)
        except (PermissionDenied, Unsupported) as error:
            unverified.add(store.root)
            _log.warning("objects are not verified: their checksums cannot be read", root=store.root, reason=str(error))
            return
        if expected is not None:
            self._verification = Verification(self.ref, expected)

    def joined(self, standing: FetchEntry) -> None:
        """Handle the scheduler entry of the fetch."""

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return the object and the byte range that belong to ``span``."""
        return self.ref, span

    def put_off(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether the caller of the fetch will request a refused span again later."""
        return False

    def lost(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether a refused span may be replaced by zeros."""
        return False

    def arrived(self, span: ByteRange, part: RangeSink, answered_by: str) -> None:
        """Record a part and its sender."""
        if answered_by and len(self._answered) < _TOLD_MAX:
            self._answered[answered_by] = None
        if self._verification is not None:
            self._verification.arrived(span, part)
        if self.watch is not None:
            self.watch.arrived(span, part)

    async def damaged(self, recorder: Recorder, fetch_count: int) -> tuple[ByteRange, ...]:
        """Return the spans that must be fetched again, after ``fetch_count`` fetches; called when all have arrived.

        Raises:
            BadResponse: the object was fetched often enough.
        """
        if self._verification is None:
            return ()
        spans = await self._verification.finish(self.sink)
        if not spans:
            return ()
        recorder.count(FETCH_DAMAGED, sum(span.size_bytes for span in spans))
        said = f'{self._verification.describe()}, etag "{self.ref.etag}"'
        senders = "; ".join(self._answered) or "unknown"
        self._answered.clear()  # the next senders may be the wrong ones then
        if fetch_count >= _FETCHES_MAX:
            raise BadResponse(
                f"{said}, in {fetch_count} fetches, the last from {senders}",
                object=self.ref.url,
                hint='the object, its checksum or the network is damaged; fetch.verify = "length" skips the check',
                stage="source",
            )
        _log.warning(
            "an object does not match its checksum: fetching it again",
            object=self.ref.url,
            said=said,
            answered_by=senders,
        )
        return spans
