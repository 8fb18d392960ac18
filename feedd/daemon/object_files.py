"""Objects as files for clients: listed by folder, and read by ranges, from the cache where it has them.

A small object is brought into the cache as a whole, because most readers want all of it. Of a larger object that is not
cached only the requested ranges are fetched, and they are not kept. So a look at a checkpoint of 100 GB fetches what is
looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import structlog

from feedd.access import FILE_ROOT
from feedd.catalog.urls import parse_url
from feedd.errors import BadRequest, CacheError
from feedd.fetch.pages import closing_pages
from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CACHE_DISK
from feedd.flow.range_sinks import MemorySink
from feedd.flow.tasks import run_to_end, unwrapped_group
from feedd.serve.files_service import ListedName
from feedd.units import MIB
from feedd.values import ByteRange, ObjectRef

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from feedd.access import AccessRules
    from feedd.catalog.sources import Sources
    from feedd.catalog.urls import Location
    from feedd.owner import Owner
    from feedd.protocols import ObjectStore
    from feedd.tables.cache import ConvertingCache
    from feedd.values import ShardFile

WHOLE_BYTES_MAX: Final = 8 * MIB
"""Objects up to this size are brought into the cache."""

_PIECE_BYTES: Final = 4 * MIB
_PIECES_AHEAD: Final = 4
_OWNER_BYTES_MAX: Final = 64 * MIB  # memory of all reads of one owner
_LAST_CHARACTER: Final = "\U0010ffff"  # after it comes no key of a folder
_PAGE_NAMES: Final = 1000

_log = structlog.get_logger(__name__)


class ReadObjects:
    """``serve.files_service.ObjectFiles`` over the sources and the cache of a daemon.

    Args:
        sources: lists and fetches.
        cache: has whole objects.
        rules: what each owner may read.
    """

    def __init__(self, sources: Sources, cache: ConvertingCache, rules: AccessRules) -> None:
        self._sources = sources
        self._cache = cache
        self._rules = rules
        self._budgets: WeakValueDictionary[Owner, ByteBudget] = WeakValueDictionary()

    async def info(self, url: str, owner: Owner) -> ObjectRef:
        """Return the current version of an object."""
        location = self._permitted(url, owner)
        return await self._sources.store(location.root).head(location.key)

    async def list(
        self, url: str, owner: Owner, send: Callable[[Sequence[ListedName]], Awaitable[object]], *, recursive: bool
    ) -> None:
        """Send the names that begin with ``url``. Without ``recursive``, a large folder costs two requests at most."""
        location = self._permitted(url, owner)
        store, access = self._sources.store(location.root), self._rules.of(owner)

        async def send_permitted(names: Sequence[ListedName]) -> None:
            # A rule for a folder does not cover files next to the folder, whose paths begin alike.
            await send([name for name in names if access.covers(FILE_ROOT, name.key)])

        chosen = send_permitted if location.root == FILE_ROOT else send
        after: str | None = ""
        while after is not None:
            after = await _listed(store, location.key, after, chosen, recursive=recursive)

    async def read(
        self,
        version: tuple[str, str, int],
        owner: Owner,
        span: ByteRange,
        send: Callable[[memoryview], Awaitable[object]],
    ) -> None:
        """Send a range of a version of an object."""
        url, etag, size_bytes = version
        location = self._permitted(url, owner)
        ref = ObjectRef(location.root, location.key, size_bytes, etag)
        budget = self._budgets.setdefault(owner, ByteBudget(_OWNER_BYTES_MAX))
        async with budget.reserve(min(span.size_bytes, _PIECES_AHEAD * _PIECE_BYTES)):
            if size_bytes <= WHOLE_BYTES_MAX or self._cache.holds(ref):
                span = await self._read_cached(ref, span, send)
            await self._fetched(ref, span, send)

    async def _read_cached(
        self, ref: ObjectRef, span: ByteRange, send: Callable[[memoryview], Awaitable[object]]
    ) -> ByteRange:
        """Send a range out of the cache; return what is left, because the cache's disk fails or has no room."""
        start = span.start
        try:
            with await self._cache.acquire([ref]) as pins:
                async with _opened(pins.files[0]) as fd:
                    for piece in pieces(span):
                        data = await run_to_end(CACHE_DISK.begin(_read_piece, fd, pins.files[0].data_at, piece))
                        await send(data)
                        start = piece.end
        except (CacheError, OSError) as error:
            _log.warning("a cached object cannot be read, so it is fetched", object=ref.url, reason=str(error))
        return ByteRange(start, span.end)

    async def _fetched(self, ref: ObjectRef, span: ByteRange, send: Callable[[memoryview], Awaitable[object]]) -> None:
        """Fetch pieces of a range at the same time, and send them in order."""
        store = self._sources.store(ref.root)
        todo = deque(pieces(span))
        running: deque[asyncio.Task[memoryview]] = deque()
        async with unwrapped_group() as group:
            while todo or running:
                while todo and len(running) < _PIECES_AHEAD:
                    running.append(group.create_task(_piece(store, ref, todo.popleft())))
                await send(await running.popleft())

    def _permitted(self, url: str, owner: Owner) -> Location:
        """Return the parts of a URL that the owner may read.

        Raises:
            BadRequest: the URL is malformed, or names more than an object or a prefix.
            PermissionDenied: the owner may not read it.
        """
        location = parse_url(url)
        if location.manifest or location.format:
            raise BadRequest("expected a plain URL, got one with a + in its scheme", object=url, stage="source")
        self._rules.of(owner).check(location.root, location.key, url)
        return location


def pieces(span: ByteRange) -> list[ByteRange]:
    """Return a range in pieces of equal size; the last may be shorter."""
    return [
        ByteRange(start, min(start + _PIECE_BYTES, span.end)) for start in range(span.start, span.end, _PIECE_BYTES)
    ]


async def _listed(
    store: ObjectStore,
    prefix: str,
    after: str,
    send: Callable[[Sequence[ListedName]], Awaitable[object]],
    *,
    recursive: bool,
) -> str | None:
    """Send the names behind ``after``; return where to go on if the rest of a folder can be left out, else None."""
    folder = ""
    async with closing_pages(store.list(prefix, after)) as pages:
        async for page in pages:
            names: list[ListedName] = []
            for ref in page:
                name, slash, _ = ref.key[len(prefix) :].partition("/")
                if recursive or not slash:
                    folder = ""
                    names.append(ListedName(ref.key, ref))
                elif f"{prefix}{name}/" != folder:
                    folder = f"{prefix}{name}/"
                    names.append(ListedName(folder, None))
            if names:
                await send(names)
            if folder and len(page) >= _PAGE_NAMES:
                return f"{folder}{_LAST_CHARACTER}"
    return None


async def _piece(store: ObjectStore, ref: ObjectRef, span: ByteRange) -> memoryview:
    data = memoryview(bytearray(span.size_bytes))
    await store.read_into(ref, span, MemorySink(data))
    return data


@contextlib.asynccontextmanager
async def _opened(file: ShardFile) -> AsyncIterator[int]:
    """Yield a descriptor of a cached file."""
    if file.fd >= 0:
        yield file.fd
        return
    fd = await run_to_end(CACHE_DISK.begin(os.open, file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        yield fd
    finally:
        os.close(fd)


def _read_piece(fd: int, data_at: int, span: ByteRange) -> memoryview:
    data = memoryview(bytearray(span.size_bytes))
    done = 0
    while done < span.size_bytes:
        count = os.preadv(fd, [data[done:]], data_at + span.start + done)
        if not count:
            raise OSError(f"expected {span.size_bytes} bytes, got {done}")
        done += count
    return data
