"""When each object is needed next by any reader: the streams of several readers on one timeline. Pure.

A stream is a sequence of objects, and a position in it counts the bytes before it. Positions and speeds of different
streams cannot be compared. The distance of each use from its stream's current position can.

So a use's *time* is its position plus the stream's shift. The shift makes every stream open at the timeline's current
time. That time moves with the stream that is furthest ahead. A stream that falls behind by more than its slack is
shifted to it, and its uses get new times. With one stream, or if all keep pace, no use gets a new time.

Times are computed when they are asked for. So a dataset with a million shards costs nothing until the cache holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from numpy.typing import NDArray

    from feedd.values import ObjectRef


class StreamUses(Protocol):
    """The objects of a stream."""

    def next_uses(self, refs: Collection[ObjectRef], window: int) -> NDArray[np.float64]:
        """Return the position where each object is needed next from a window on, float64[refs]; ``inf``: nowhere."""


@dataclass(slots=True)
class _Stream:
    uses: StreamUses
    window: int
    at: float
    shift: float
    slack_bytes: float

    @property
    def time(self) -> float:
        return self.at + self.shift


class NextUseTimeline:
    """Next uses of all streams."""

    def __init__(self) -> None:
        self._now = 0.0
        self._streams: dict[Hashable, _Stream] = {}

    @property
    def stream_count(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def open(self, name: Hashable, uses: StreamUses, window: int, at: float, slack_bytes: float) -> None:
        """Add a stream.

        Args:
            name: key of the stream in later calls.
            uses: tells where the stream needs each object.
            window: the first window that is still needed.
            at: current position.
            slack_bytes: how far it may fall behind the furthest stream before its uses get new times.
        """
        assert name not in self._streams, "a stream opens once"
        self._streams[name] = _Stream(uses, window, at, self._now - at, slack_bytes)

    def need_from(self, name: Hashable, window: int) -> None:
        """Set the first window of a stream that is still needed; uses of objects that end before it get new times."""
        self._streams[name].window = window

    def advance(self, name: Hashable, at: float) -> bool:
        """Move a stream forward (never back). True: some stream was shifted, so all its uses have new times."""
        stream = self._streams[name]
        stream.at = max(stream.at, at)
        self._now = max(self._now, stream.time)
        behind = [one for one in self._streams.values() if self._now - one.time > one.slack_bytes]
        for one in behind:
            one.shift = self._now - one.at
        return bool(behind)

    def close(self, name: Hashable) -> None:
        """Remove a stream; objects that no other stream needs lose their next use."""
        del self._streams[name]

    def times(self, refs: Collection[ObjectRef]) -> list[float]:
        """Return when each object is needed next; ``inf``: never."""
        nearest = np.full(len(refs), np.inf)
        for stream in self._streams.values():
            np.minimum(nearest, stream.uses.next_uses(refs, stream.window) + stream.shift, out=nearest)
        found: list[float] = nearest.tolist()
        return found
