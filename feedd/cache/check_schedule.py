"""When an entry is verified again before its use, and how closely."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Final

from feedd.cache.entry_storage import Depth, Finding
from feedd.cache.policy.eviction_order import EntryState
from feedd.flow.singleflight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.cache.cache_options import CacheOptions
    from feedd.cache.entry_storage import EntryStorage
    from feedd.cache.policy.eviction_order import Entry
    from feedd.protocols import Clock

_SEEN_FOR_S: Final = 1.0  # no thread call per batch: a file seen this recently is assumed to be still there
_COMPACT_SLACK: Final = 64

_Look = tuple["Entry", Depth]


class Checks:
    """Verifies entries: the bytes when an entry goes into use, the length of its file from time to time.

    An entry that is in use, or that was verified lately, is not read again. Concurrent requests for the same
    verification share one.
    """

    def __init__(self, group: asyncio.TaskGroup, storage: EntryStorage, clock: Clock, options: CacheOptions) -> None:
        self._storage = storage
        self._clock = clock
        self._by_blocks = options.verify != "off"
        self._again_s = options.verified_for_s if options.verify == "use" else math.inf
        self._whole_s: dict[Entry, float] = {}  # when each entry was last found whole, as closely as options ask
        self._verifying: dict[Entry, int] = {}
        self._flights: SingleFlight[_Look, Finding] = SingleFlight(group)
        self._doubted_s = -math.inf

    def doubt(self) -> None:
        """Verify every entry before its next use: a file that vanished seldom vanishes alone."""
        self._doubted_s = self._clock.monotonic_s()

    def written(self, entry: Entry) -> None:
        """Mark an entry as verified: it was just filled, and its checksums come from the fetched bytes."""
        now_s = self._clock.monotonic_s()
        entry.seen_s = now_s
        self._note(entry, now_s)

    def due(self, entry: Entry) -> Depth | None:
        """Return how closely a committed entry must be verified before its use, or None for not at all."""
        if not self._storage.shared:
            return None
        now_s = self._clock.monotonic_s()
        whole_s = self._whole_s.get(entry)
        idle = entry.pins <= 1 or entry in self._verifying  # the caller's own pin
        if whole_s is None or (idle and now_s - whole_s >= self._again_s):
            return Depth.BLOCKS if self._by_blocks else Depth.HEADER
        return Depth.LENGTH if entry.seen_s <= max(now_s - _SEEN_FOR_S, self._doubted_s) else None

    async def look(self, entries: Sequence[Entry]) -> list[Finding]:
        """Verify entries that are due; each finding is about the file that existed at that moment.

        Raises:
            CacheUnavailable: the disk does not answer.
        """
        depths = [self.due(entry) or Depth.LENGTH for entry in entries]
        shallow = [entry for entry, depth in zip(entries, depths, strict=True) if depth is Depth.LENGTH]
        deep = [(entry, depth) for entry, depth in zip(entries, depths, strict=True) if depth is not Depth.LENGTH]
        found: dict[Entry, Finding] = {}
        flights = [self._flights.join(look, partial(self._look_deep, look)) for look in deep]
        try:
            if shallow:
                answers = await self._storage.look([entry.ref for entry in shallow], Depth.LENGTH)
                found.update(zip(shallow, answers, strict=True))
            if flights:
                await asyncio.wait([flight.result for flight in flights])
            found.update((flight.key[0], flight.result.result()) for flight in flights)
        finally:
            for flight in flights:
                self._flights.leave(flight)
        now_s = self._clock.monotonic_s()
        for entry in shallow:
            if found[entry] is Finding.WHOLE:
                entry.seen_s = now_s
        return [found[entry] for entry in entries]

    async def close(self) -> None:
        """Cancel all running verifications."""
        await self._flights.cancel_all()

    async def _look_deep(self, look: _Look) -> Finding:
        entry, depth = look
        generation = entry.generation
        self._verifying[entry] = self._verifying.get(entry, 0) + 1
        try:
            (finding,) = await self._storage.look((entry.ref,), depth)
        finally:
            self._verifying[entry] -= 1
            if not self._verifying[entry]:
                del self._verifying[entry]
        if finding is Finding.WHOLE and entry.generation == generation:
            entry.seen_s = now_s = self._clock.monotonic_s()
            self._note(entry, now_s)
        return finding

    def _note(self, entry: Entry, now_s: float) -> None:
        self._whole_s[entry] = now_s
        if len(self._whole_s) >= self._compact_at:
            self._whole_s = {one: s for one, s in self._whole_s.items() if one.state is not EntryState.GONE}
            self._compact_at = 2 * len(self._whole_s) + _COMPACT_SLACK

    _compact_at = _COMPACT_SLACK
