"""Brings entries into the cache for peers, and pins them while peers read. Belongs to the cache's loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import structlog

from feedd.errors import FeeddError
from feedd.peers.peer_fetcher import may_travel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.access import AccessRules
    from feedd.owner import Owner
    from feedd.peers.peer_traffic import PeerTraffic
    from feedd.protocols import PinnedShards
    from feedd.values import ObjectRef, ShardFile

_SHARE: Final = 4
"""Peers pin at most one part in this many of the cache."""
BRING_S: Final = 60.0
"""Longest time for a fetch that a peer waits for."""
_log = structlog.get_logger(__name__)


class EntryCache(Protocol):
    """What peers need of the cache."""

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the bytes of all entries."""

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the cache holds the object or is filling it."""

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter without evicting an entry that is needed sooner."""

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Return pins on ``refs``, fetching missing ones."""


@dataclass(frozen=True, slots=True)
class EntryWish:
    """A peer's wish for an entry.

    Attributes:
        ref: the entry.
        owner: who the peer is.
    """

    ref: ObjectRef
    owner: Owner


class PeerEntries:
    """Entries that peers want: each has at most one pin, whatever the number of peers.

    An entry is refused in four cases. The peer may not read it. This daemon reads it from a peer itself. It would evict
    an entry that is needed here. Peers have pinned enough already.

    Args:
        cache: the cache.
        access: what each peer may read.
        traffic: what moves between daemons.
    """

    def __init__(self, cache: EntryCache, access: AccessRules, traffic: PeerTraffic) -> None:
        self._cache = cache
        self._access = access
        self._traffic = traffic
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pins: dict[ObjectRef, PinnedShards | None] = {}

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Cancel what is being brought, and release all pins."""
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)
        for ref in tuple(self._pins):
            self.release(ref)

    def bring(self, wish: EntryWish, done: Callable[[ShardFile | None], None]) -> None:
        """Call ``done`` with the file of a pinned entry, or with None if it is refused; maybe before this returns.

        Not called again for an entry before it is released.
        """
        if self._refuses(wish):
            done(None)
            return
        self._pins[wish.ref] = None
        task = self._group.create_task(self._bring(wish.ref, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self, ref: ObjectRef) -> None:
        """Drop the pin of an entry."""
        pins = self._pins.pop(ref, None)
        if pins is not None:
            pins.release()

    def may_read(self, wish: EntryWish) -> bool:
        """Whether a peer may read an entry at all."""
        return may_travel(wish.ref) and self._access.of(wish.owner).covers(wish.ref.root, wish.ref.key)

    def _refuses(self, wish: EntryWish) -> bool:
        ref = wish.ref
        if not self.may_read(wish):
            return True
        pinned_bytes = sum(one.size_bytes for one in self._pins)
        if pinned_bytes and pinned_bytes + ref.size_bytes > self._cache.limit_bytes // _SHARE:
            return True
        return not self._cache.knows(ref) and not self._cache.has_room(ref)

    async def _bring(self, ref: ObjectRef, done: Callable[[ShardFile | None], None]) -> None:
        file: ShardFile | None = None
        try:
            if not self._traffic.may_promise(ref):
                return
            with self._traffic.bringing(ref):
                async with asyncio.timeout(BRING_S):
                    pins = await self._cache.acquire([ref])
            self._pins[ref], file = pins, pins.files[0]
        except (FeeddError, TimeoutError) as error:
            _log.debug("an entry could not be brought for a peer", object=ref.url, error=str(error))
        finally:
            if file is None:
                self._pins.pop(ref, None)
            done(file)
