"""What traces are made of: the times of batches, fetches, parts and requests, noted while tracing is on.

Nothing is sent while they are noted. When the slot of a chosen batch is free again, the batch and the fetches of its
shards are handed to an exporter together. So a trace is whole, although a shard is fetched before anybody knows which
batch will be chosen.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from feedd.errors import FeeddError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from feedd.values import ByteRange, ReadProgress

FETCHES_MAX: Final = 1024
"""Fetches that are remembered; the oldest are forgotten first."""
PARTS_MAX: Final = 128
"""Parts of a fetch that are noted; of the others only their number is known."""


@dataclass(slots=True)
class Period:
    """When something began and ended, on the monotonic clock, and how.

    Attributes:
        outcome: ``ok``, ``cancelled``, ``internal``, or the kind of the error; empty: it has not ended.
    """

    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    outcome: str = ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Note the end of the body of the ``with``, and its error."""
        try:
            yield
        except BaseException as error:
            self.outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
            if isinstance(error, FeeddError):
                self.outcome = error.kind
            raise
        else:
            self.outcome = "ok"
        finally:
            self.ended_s = time.monotonic()


@dataclass(slots=True)
class AttemptTrace:
    """One request for a part; ``progress`` tells the bytes that came."""

    period: Period
    progress: ReadProgress


@dataclass(slots=True)
class PartTrace:
    """A part of an object, and the requests for it."""

    url: str
    span: ByteRange
    period: Period
    attempts: list[AttemptTrace] = field(default_factory=list)


@dataclass(slots=True)
class FetchTrace:
    """The fetch of a shard.

    Attributes:
        part_count: all parts, also those that are not noted.
        exported: what the exporter made of it; None: nothing yet.
    """

    url: str
    size_bytes: int
    period: Period = field(default_factory=Period)
    parts: list[PartTrace] = field(default_factory=list)
    part_count: int = 0
    exported: object = None


@dataclass(frozen=True, slots=True)
class BatchTrace:
    """A batch, or a run of batches in one slot.

    Attributes:
        urls: its shards.
        began_s: when it was asked for; the times are those of the monotonic clock.
        planned_s: when its samples were known.
        decoding_s: when its shards were there.
        made_s: when it was ready.
        released_s: when its slot was free again.
    """

    epoch: int
    step: int
    rank: int
    urls: Sequence[str]
    began_s: float
    planned_s: float
    decoding_s: float
    made_s: float
    batch_count: int = 1
    sample_count: int = 0
    size_bytes: int = 0
    released_s: float = 0.0


class TraceExporter(Protocol):
    """Sends traces to where somebody looks at them."""

    def export(self, batch: BatchTrace, fetches: Sequence[FetchTrace]) -> None:
        """Hand over a batch and the fetches of its shards; does not wait."""

    def close(self) -> None:
        """Send what is left; may take a second or two."""


_fetch: ContextVar[FetchTrace | None] = ContextVar("fetch_trace", default=None)
_part: ContextVar[PartTrace | None] = ContextVar("part_trace", default=None)


class TraceLog:
    """Chooses batches, and remembers the fetches of late.

    Args:
        share: share of the steps whose batches are exported.
        exporter: gets them.
    """

    def __init__(self, share: float, exporter: TraceExporter) -> None:
        self.exporter = exporter
        self._limit = round(share * (1 << 32))
        self._fetches: OrderedDict[str, FetchTrace] = OrderedDict()

    def wants(self, epoch: int, step: int) -> bool:
        """Whether the batch of this step is exported; the same on all ranks."""
        return zlib.crc32(f"{epoch}/{step}".encode()) < self._limit

    def export(self, batch: BatchTrace) -> None:
        """Export a batch with the fetches of its shards that have ended."""
        found = (self._fetches.get(url) for url in batch.urls)
        self.exporter.export(batch, [one for one in found if one is not None and one.period.outcome])

    @contextmanager
    def fetching(self, url: str, size_bytes: int) -> Iterator[None]:
        """Note a fetch; the parts that are read meanwhile, in this task and its children, belong to it."""
        trace = FetchTrace(url, size_bytes)
        self._fetches[url] = trace
        self._fetches.move_to_end(url)
        while len(self._fetches) > FETCHES_MAX:
            self._fetches.popitem(last=False)
        token = _fetch.set(trace)
        try:
            with trace.period.measured():
                yield
        finally:
            _fetch.reset(token)


@contextmanager
def part_traced(url: str, span: ByteRange) -> Iterator[None]:
    """Note a part of the current fetch; the requests that are sent meanwhile belong to it."""
    fetch = _fetch.get()
    if fetch is None:
        yield
        return
    part = PartTrace(url, span, Period())
    fetch.part_count += 1
    if len(fetch.parts) < PARTS_MAX:
        fetch.parts.append(part)
    token = _part.set(part)
    try:
        with part.period.measured():
            yield
    finally:
        _part.reset(token)


@contextmanager
def attempt_traced(progress: ReadProgress) -> Iterator[None]:
    """Note a request for the current part."""
    part = _part.get()
    if part is None:
        yield
        return
    attempt = AttemptTrace(Period(), progress)
    part.attempts.append(attempt)
    with attempt.period.measured():
        yield


def distinct(urls: Iterable[str]) -> list[str]:
    """Return each URL once, in order."""
    return list(dict.fromkeys(urls))
