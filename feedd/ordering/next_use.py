"""When each object is needed next by any reader: the streams of several readers on one timeline. Pure.

A stream is a sequence of objects, and a position in it counts the bytes before it. Positions and speeds of different
streams cannot be compared. The distance of each use from its stream's current position can.

So a use's *time* is its position plus the stream's shift. The shift makes every stream open at the timeline's current
time. That time moves with the stream that is furthest ahead. A stream that falls behind by more than its slack is
shifted to it, and its uses get new times. With one stream, or if all keep pace, no use is reported twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from feedd.values import ObjectRef

Use = tuple["ObjectRef", float]


@dataclass(slots=True)
class _Stream:
    at: float
    shift: float
    slack_bytes: float
    positions: dict[ObjectRef, float] = field(default_factory=dict)

    @property
    def time(self) -> float:
        return self.at + self.shift


class NextUseTimeline:
    """Next uses of all streams. Each method returns the changed (object, time) pairs: consume them at once."""

    def __init__(self) -> None:
        self._now = 0.0
        self._streams: dict[Hashable, _Stream] = {}

    @property
    def stream_count(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def open(self, name: Hashable, at: float, slack_bytes: float) -> None:
        """Add a stream.

        Args:
            name: key of the stream in later calls.
            at: current position.
            slack_bytes: how far it may fall behind the furthest stream before its uses get new times.
        """
        assert name not in self._streams, "a stream opens once"
        self._streams[name] = _Stream(at, self._now - at, slack_bytes)

    def set_uses(self, name: Hashable, uses: Iterable[tuple[ObjectRef, float]]) -> Iterator[Use]:
        """Set at which position of the stream each object is needed next."""
        stream = self._streams[name]
        others = [other for other in self._streams.values() if other is not stream]
        for ref, position in uses:
            stream.positions[ref] = position
            time = position + stream.shift
            yield ref, (min(time, _nearest(ref, others)) if others else time)

    def advance(self, name: Hashable, at: float) -> Iterator[Use]:
        """Move a stream forward (never back)."""
        stream = self._streams[name]
        stream.at = max(stream.at, at)
        self._now = max(self._now, stream.time)
        for other in self._streams.values():
            if self._now - other.time > other.slack_bytes:
                other.shift = self._now - other.at
                yield from self._all_uses(other)

    def close(self, name: Hashable) -> Iterator[Use]:
        """Remove a stream; objects that no other stream needs lose their next use."""
        yield from self._all_uses(self._streams.pop(name))

    def _all_uses(self, stream: _Stream) -> Iterator[Use]:
        """Yield all uses of a stream again; the stream may be closed."""
        streams = tuple(self._streams.values())
        return ((ref, _nearest(ref, streams)) for ref in stream.positions)


def _nearest(ref: ObjectRef, streams: Iterable[_Stream]) -> float:
    nearest = math.inf
    for stream in streams:  # a plain loop, since it runs a million times per epoch of a large dataset
        position = stream.positions.get(ref)
        if position is not None and position + stream.shift < nearest:
            nearest = position + stream.shift
    return nearest
