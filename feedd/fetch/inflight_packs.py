"""Entries being filled: a batch waits only for its own samples, and reads them from the unfinished entry.

A pack is written to its cache entry object by object, and no object is written again once it has arrived. So arrived
objects can be read while the others are still being fetched. A table that grows by row groups is read so too: its
objects are rows. Used on one event loop; bookkeeping only.
"""

from __future__ import annotations

import asyncio
import bisect
import os
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, Self

from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.flow.range_sinks import FileSink
    from feedd.values import ObjectRef

_ticket_of = attrgetter("ticket")
_LANDED_S: Final = 5.0  # by then the cache knows the entry, which it publishes within milliseconds


class InflightPack(Protocol):
    """One pack being fetched."""

    @property
    def ref(self) -> ObjectRef:
        """Ref of the pack, as listed."""

    @property
    def shard(self) -> ObjectRef:
        """Ref of the entry: the pack's, or that of a converted shard."""

    @property
    def file_sink(self) -> FileSink | None:
        """The piece of a file that the pack is written to, or None if the sink is not a file."""

    def missing(self, objects: set[int]) -> set[int]:
        """Return those of ``objects`` that have not arrived; lost objects count as arrived."""

    def whole(self, objects: set[int]) -> bool:
        """Whether all of ``objects`` have arrived and none is lost."""

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Fetch these objects before others."""


class PartialWait:
    """The objects that one batch waits for; a context manager. Reading ends within it.

    Args:
        book: reports arriving objects.
        wanted: objects of packs, whether or not these packs are being fetched yet.
        ticket: order among competing waits; a lower turn goes first.

    Attributes:
        ticket: as given.
        ready: done once all objects had arrived. A fetch that fails afterwards takes them away again.
    """

    def __init__(self, book: InflightPacks, wanted: Mapping[ObjectRef, set[int]], ticket: int) -> None:
        self._book = book
        self._wanted = wanted
        self.ticket = ticket
        self._left = {ref: set(objects) for ref, objects in wanted.items()}
        self._fds: list[int] = []
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        self._book.enter(self, self._wanted)
        return self

    def __exit__(self, *exc: object) -> None:
        """Unregister the wait and close its files."""
        self._book.leave(self, self._wanted)
        self.ready.cancel()
        while self._fds:
            os.close(self._fds.pop())

    def began(self, running: InflightPack) -> None:
        """Handle the start of a fetch of a pack; arrivals of an earlier fetch no longer count."""
        left = running.missing(self._wanted[running.ref])
        self._left[running.ref] = set(left)
        if left:
            running.expedite(self.ticket, left)
        else:
            self._look(running.ref)

    def arrived(self, ref: ObjectRef, number: int) -> None:
        """Handle the arrival or loss of an object."""
        left = self._left.get(ref)
        if left is not None:
            left.discard(number)
            self._look(ref)

    def finished(self, ref: ObjectRef) -> None:
        """Handle the end of a pack's fetch: the cache has the entry, or will have it in a moment."""
        self._left[ref] = set()
        self._look(ref)

    def files(self) -> dict[ObjectRef, ShardFile]:
        """Return the unfinished packs of which all wanted objects have arrived; the files stay open until the end.

        Raises:
            OSError: no descriptor is left.
        """
        found: dict[ObjectRef, ShardFile] = {}
        for ref, objects in self._wanted.items():
            running = self._book.running(ref)
            sink = running.file_sink if running is not None and running.whole(objects) else None
            if running is not None and sink is not None:
                # a descriptor of its own, because the fetch may close its one, and for reading only
                self._fds.append(os.open(f"/proc/self/fd/{sink.file.fd}", os.O_RDONLY | os.O_CLOEXEC))
                path = f"/proc/{os.getpid()}/fd/{self._fds[-1]}"
                found[ref] = ShardFile(running.shard, path, sink.offset, inflight=True, fd=self._fds[-1])
        return found

    def _look(self, ref: ObjectRef) -> None:
        if not self._left.get(ref, True):
            del self._left[ref]
        if not self._left and not self.ready.done():
            self.ready.set_result(None)


class InflightPacks:
    """The packs being fetched, and the waits for objects in them."""

    def __init__(self) -> None:
        self._running: dict[ObjectRef, InflightPack] = {}
        self._waiting: dict[ObjectRef, list[PartialWait]] = {}
        self._finished: dict[ObjectRef, float] = {}  # end times of finished fetches that the cache may not know yet

    def running(self, ref: ObjectRef) -> InflightPack | None:
        """Return the pack if it is being fetched, else None."""
        return self._running.get(ref)

    def began(self, running: InflightPack) -> None:
        """Record a fetch that is about to begin."""
        self._running[running.ref] = running
        self._finished.pop(running.ref, None)
        for awaited in self._waiting.get(running.ref, ()):
            awaited.began(running)

    def progressed(self, running: InflightPack) -> None:
        """Have all waits look again which of their objects are missing."""
        for awaited in self._waiting.get(running.ref, ()):
            awaited.began(running)

    def arrived(self, running: InflightPack, number: int) -> None:
        """Record an object that has arrived, or is lost."""
        for awaited in self._waiting.get(running.ref, ()):
            awaited.arrived(running.ref, number)

    def ended(self, running: InflightPack, *, whole: bool) -> None:
        """Record the end of a fetch."""
        if self._running.get(running.ref) is running:
            del self._running[running.ref]
        if whole:
            now_s = asyncio.get_running_loop().time()
            self._finished = {ref: at_s for ref, at_s in self._finished.items() if now_s - at_s < _LANDED_S}
            self._finished[running.ref] = now_s
            for awaited in self._waiting.get(running.ref, ()):
                awaited.finished(running.ref)

    def enter(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Register a wait and tell it about running fetches."""
        since_s = asyncio.get_running_loop().time() - _LANDED_S
        for ref in refs:
            bisect.insort(self._waiting.setdefault(ref, []), awaited, key=_ticket_of)
            running = self._running.get(ref)
            if running is not None:
                awaited.began(running)
            elif self._finished.get(ref, since_s) > since_s:
                awaited.finished(ref)

    def leave(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Unregister a wait."""
        for ref in refs:
            self._waiting[ref].remove(awaited)
            if not self._waiting[ref]:
                del self._waiting[ref]
