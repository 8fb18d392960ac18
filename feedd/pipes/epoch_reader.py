"""Reads the objects of an epoch in order, with requests for the later ones in flight.

The budget bounds the bytes that are fetched and not yet taken. Requests take their bytes in the order of the epoch, so
the piece that the consumer waits for never waits for bytes of a later piece.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from feedd.catalog.urls import parse_url
from feedd.errors import FeeddError, ResourceExhausted
from feedd.flow.budget import ByteBudget
from feedd.flow.range_sinks import FileSink, MemorySink
from feedd.flow.sink_file import SinkFile, memory_file
from feedd.units import MIB
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator

    from feedd.protocols import ObjectStore, SpanFetcher
    from feedd.values import ObjectRef

_T = TypeVar("_T")

_NOTHING: Final = memoryview(b"")
_HEADS_MAX: Final = 32
_FILE_BYTES: Final = 256 << 10  # smaller bodies are received into memory, larger ones into a memory file
_SHARE: Final = 4  # a piece has at most this part of the budget, so that some are in flight at once


class Stores(Protocol):
    """What finds and fetches objects."""

    @property
    def fetcher(self) -> SpanFetcher:
        """The fetcher for objects of any store."""

    def store(self, root: str) -> ObjectStore:
        """Return a store by its root."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One object, or one value of an augmented manifest's line.

    Attributes:
        url: URL of an object that must be looked up first; of a value, the manifest and the line.
        ref: the object; None: ``url`` must be looked up first, or ``data`` is all.
        data: the value; None: it is an object.
    """

    url: str = ""
    ref: ObjectRef | None = None
    data: bytes | None = None


@dataclass(eq=False, slots=True)
class Piece:
    """A piece of an object. The consumer calls ``release`` when it has taken the bytes.

    Attributes:
        wanted: the object.
        start: first byte in the object.
        size_bytes: number of bytes.
        object_bytes: size of the object.
        memory: the bytes, if ``file`` is None.
        file: a memory file that begins with the bytes; None: they are in ``memory``.
        failure: why there are no bytes.
        loaded: set when there are bytes, or a failure.
        released: set when the consumer has taken them.
    """

    wanted: Wanted
    start: int
    size_bytes: int
    object_bytes: int
    memory: memoryview = field(default=_NOTHING)
    file: SinkFile | None = None
    failure: FeeddError | None = None
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """URL of the object, or the manifest and the line of a value."""
        return self.wanted.url if self.wanted.ref is None else self.wanted.ref.url

    @property
    def is_first(self) -> bool:
        """Whether the object begins with this piece."""
        return not self.start

    @property
    def is_last(self) -> bool:
        """Whether the object ends with this piece."""
        return self.start + self.size_bytes == self.object_bytes

    def release(self) -> None:
        """Give the bytes back; idempotent."""
        self.memory = _NOTHING
        if self.file is not None:
            self.file.close()
            self.file = None
        self.released.set()


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bounds of what one reader fetches in advance.

    Attributes:
        size_bytes: bytes fetched and not yet taken.
        piece_count: pieces of them, because each small piece costs more than its bytes.
    """

    size_bytes: int
    piece_count: int


class EpochReader:
    """Reads the wanted objects in order; its owner closes it in any case.

    Args:
        wanted: the objects, in order. Iterating may raise FeeddError.
        stores: finds and fetches them.
        limits: bounds of what is fetched in advance.
        group: runs the requests.

    Attributes:
        fed: set when all requests have begun, so that those of the next epoch may follow.
    """

    def __init__(self, wanted: Iterable[Wanted], stores: Stores, limits: ReadLimits, group: asyncio.TaskGroup) -> None:
        self._wanted = wanted
        self._stores = stores
        self._budget = ByteBudget(limits.size_bytes)
        self._free = asyncio.Semaphore(limits.piece_count)
        self._piece_bytes = max(1, limits.size_bytes // _SHARE // MIB * MIB or limits.size_bytes // _SHARE)
        self._group = group
        self._queue: asyncio.Queue[Piece | FeeddError | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.fed = asyncio.Event()
        self._begin(self._feed())

    async def next(self) -> Piece | None:
        """Return the next piece, with its bytes; None: the epoch has ended.

        Raises:
            FeeddError: the object, or its line, cannot be read.
        """
        piece = await self._queue.get()
        if isinstance(piece, FeeddError):
            raise piece
        if piece is None:
            return None
        await piece.loaded.wait()
        if piece.failure is not None:
            raise piece.failure
        return piece

    async def close(self) -> None:
        """Cancel all requests and give their bytes back; idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    def _begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _feed(self) -> None:
        """Begin the requests, in order."""
        async for found in self._found():
            if isinstance(found, FeeddError):
                self._queue.put_nowait(found)
                break
            for piece in self._pieces(found):
                await self._free.acquire()
                self._queue.put_nowait(piece)
                self._begin(self._load(piece))
        self._queue.put_nowait(None)
        self.fed.set()

    async def _found(self) -> AsyncIterator[Wanted | FeeddError]:
        """Yield the objects in order, looked up some in advance, and at the end the error that ended the list."""
        source = self._listed()
        waiting: deque[tuple[Wanted | FeeddError, asyncio.Task[ObjectRef | FeeddError] | None]] = deque()
        while True:
            while len(waiting) < _HEADS_MAX and (one := next(source, None)) is not None:
                unknown = "" if isinstance(one, FeeddError) or one.ref or one.data is not None else one.url
                waiting.append((one, self._begin(self._head(unknown)) if unknown else None))
            if not waiting:
                return
            one, task = waiting.popleft()
            if task is None or isinstance(one, FeeddError):
                yield one
                continue
            ref = await task
            yield ref if isinstance(ref, FeeddError) else replace(one, ref=ref)

    def _listed(self) -> Iterator[Wanted | FeeddError]:
        try:
            yield from self._wanted
        except FeeddError as error:
            yield error

    async def _head(self, url: str) -> ObjectRef | FeeddError:
        try:
            location = parse_url(url)
            return await self._stores.store(location.root).head(location.key)
        except FeeddError as error:
            error.object = error.object or url
            return error

    def _pieces(self, wanted: Wanted) -> Iterator[Piece]:
        """Cut an object; an object that is no larger than a piece is verified against its store's checksum."""
        size_bytes = len(wanted.data or b"") if wanted.ref is None else wanted.ref.size_bytes
        if wanted.ref is None:
            yield Piece(wanted, 0, size_bytes, size_bytes)
            return
        for start in range(0, max(size_bytes, 1), self._piece_bytes):
            yield Piece(wanted, start, min(self._piece_bytes, size_bytes - start), size_bytes)

    async def _load(self, piece: Piece) -> None:
        try:
            async with self._budget.reserve(piece.size_bytes):
                try:
                    await self._fetch(piece)
                except FeeddError as error:
                    error.object = error.object or piece.url
                    piece.failure = error
                piece.loaded.set()
                await piece.released.wait()
        finally:
            piece.release()
            self._free.release()

    async def _fetch(self, piece: Piece) -> None:
        ref, fetcher = piece.wanted.ref, self._stores.fetcher
        if ref is None:
            piece.memory = memoryview(piece.wanted.data or b"")
            return
        if not piece.size_bytes:
            return
        span = ByteRange(piece.start, piece.start + piece.size_bytes)
        if piece.object_bytes < _FILE_BYTES:  # the store's checksum would need a second request
            piece.memory = memoryview(bytearray(piece.size_bytes))
            await fetcher.fetch_spans(ref, [span], MemorySink(piece.memory))
            return
        piece.file = _memory_file()
        sink = FileSink(piece.file, -piece.start, piece.object_bytes)
        if piece.is_first and piece.is_last:
            await fetcher.fetch(ref, sink)
        else:
            await fetcher.fetch_spans(ref, [span], sink)


def _memory_file() -> SinkFile:
    try:
        fd = memory_file("feedd-pipe")
        try:
            return SinkFile(fd)
        finally:
            os.close(fd)
    except OSError as error:
        hint = "raise the limit of open files: ulimit -n"
        message = f"expected a memory file, got {(error.strerror or str(error)).lower()}"
        raise ResourceExhausted(message, hint=hint, stage="pipe") from error
