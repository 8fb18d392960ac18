"""Samples of packs that are on their way in: who needs some of a pack waits for those, and reads them where they land.

A pack is written to its cache entry object by object, and nothing is written twice where it has come: so what has come
can be read while the rest is still under way. One event loop; bookkeeping only.
"""

from __future__ import annotations

import asyncio
import bisect
import os
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from feedd.dataset.packs import Packs
    from feedd.flow.mapping import FilePlace
    from feedd.values import ObjectRef

_turn_of = attrgetter("turn")
_LANDED_S: Final = 5.0  # by then an entry is the cache's, who takes milliseconds to publish it


class InflightPack(Protocol):
    """One pack on its way in."""

    @property
    def ref(self) -> ObjectRef:
        """The pack."""

    @property
    def place(self) -> FilePlace | None:
        """Where it lands; None: in no file."""

    def missing(self, objects: set[int]) -> set[int]:
        """Return those of some of its objects that have not come; lost ones have."""

    def whole(self, objects: set[int]) -> bool:
        """Whether some of its objects are here, none of them lost."""

    def hurry(self, turn: int, objects: set[int]) -> None:
        """Fetch these before others."""


class PartialWait:
    """What one batch waits for; a context manager. Reading ends within it.

    Args:
        book: tells it what comes.
        wanted: objects of packs, whether or not these are on their way yet.
        turn: whose turn it is when these compete with others.

    Attributes:
        turn: as given.
        ready: done when all has come, at least once: a fetch that then failed took it away again.
    """

    def __init__(self, book: InflightPacks, wanted: Mapping[ObjectRef, set[int]], turn: int) -> None:
        self._book = book
        self._wanted = wanted
        self.turn = turn
        self._left = {ref: set(objects) for ref, objects in wanted.items()}
        self._fds: list[int] = []
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        self._book.enter(self, self._wanted)
        return self

    def __exit__(self, *exc: object) -> None:
        """Forget it; files are closed."""
        self._book.leave(self, self._wanted)
        self.ready.cancel()
        while self._fds:
            os.close(self._fds.pop())

    def began(self, coming: InflightPack) -> None:
        """A fetch of one of the packs began, or was under way: what had come of an earlier one counts no more."""
        left = coming.missing(self._wanted[coming.ref])
        self._left[coming.ref] = set(left)
        if left:
            coming.hurry(self.turn, left)
        else:
            self._look(coming.ref)

    def arrived(self, ref: ObjectRef, number: int) -> None:
        """An object has come, or is lost."""
        left = self._left.get(ref)
        if left is not None:
            left.discard(number)
            self._look(ref)

    def landed(self, ref: ObjectRef) -> None:
        """A pack has come whole: the cache has it, or will have in a moment."""
        self._left[ref] = set()
        self._look(ref)

    def files(self) -> dict[ObjectRef, ShardFile]:
        """Return the packs that are still under way, of which all that is wanted is here; open until the end.

        Raises:
            OSError: no descriptor is left.
        """
        found: dict[ObjectRef, ShardFile] = {}
        for ref, objects in self._wanted.items():
            coming = self._book.coming(ref)
            place = coming.place if coming is not None and coming.whole(objects) else None
            if place is not None:
                self._fds.append(os.dup(place.fd))  # its own, which is open as long as the fetch, may close meanwhile
                path = f"/proc/{os.getpid()}/fd/{self._fds[-1]}"
                found[ref] = ShardFile(ref, path, place.at, inflight=True)
        return found

    def _look(self, ref: ObjectRef) -> None:
        if not self._left.get(ref, True):
            del self._left[ref]
        if not self._left and not self.ready.done():
            self.ready.set_result(None)


class InflightPacks:
    """The packs on their way in, and who waits for some of what is in them."""

    def __init__(self) -> None:
        self._coming: dict[ObjectRef, InflightPack] = {}
        self._waiting: dict[ObjectRef, list[PartialWait]] = {}
        self._landed: dict[ObjectRef, float] = {}  # when, of those that the cache may not know yet

    def coming(self, ref: ObjectRef) -> InflightPack | None:
        """Return the pack of that name if it is on its way."""
        return self._coming.get(ref)

    def began(self, coming: InflightPack) -> None:
        """Take note of a fetch that stands in the line."""
        self._coming[coming.ref] = coming
        self._landed.pop(coming.ref, None)
        for awaited in self._waiting.get(coming.ref, ()):
            awaited.began(coming)

    def arrived(self, coming: InflightPack, number: int) -> None:
        """Take note of an object that has come, or is lost."""
        for awaited in self._waiting.get(coming.ref, ()):
            awaited.arrived(coming.ref, number)

    def ended(self, coming: InflightPack, *, whole: bool) -> None:
        """Take note of the end of a fetch."""
        if self._coming.get(coming.ref) is coming:
            del self._coming[coming.ref]
        if whole:
            now_s = asyncio.get_running_loop().time()
            self._landed = {ref: at_s for ref, at_s in self._landed.items() if now_s - at_s < _LANDED_S}
            self._landed[coming.ref] = now_s
            for awaited in self._waiting.get(coming.ref, ()):
                awaited.landed(coming.ref)

    def enter(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Tell a wait of what comes."""
        since_s = asyncio.get_running_loop().time() - _LANDED_S
        for ref in refs:
            bisect.insort(self._waiting.setdefault(ref, []), awaited, key=_turn_of)
            coming = self._coming.get(ref)
            if coming is not None:
                awaited.began(coming)
            elif self._landed.get(ref, since_s) > since_s:
                awaited.landed(ref)

    def leave(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Tell it no more."""
        for ref in refs:
            self._waiting[ref].remove(awaited)
            if not self._waiting[ref]:
                del self._waiting[ref]


def objects_of(packs: Packs, number: int, samples: NDArray[np.int64]) -> set[int]:
    """Return which objects of a pack hold some of its samples.

    Args:
        packs: knows it.
        number: which of them it is.
        samples: int64[n], ordinals within the pack.
    """
    span = packs.span(number)
    if packs.counts[number] == len(span):  # an object each
        return set(samples.tolist())
    of = packs.members.sample[span.start : span.stop] - packs.members.sample[span.start]
    return set(np.flatnonzero(np.isin(of, samples)).tolist())
