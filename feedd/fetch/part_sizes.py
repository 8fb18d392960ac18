"""The size of an object's parts, from the recent parts of its bucket. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from feedd.units import MIB

_START_BYTES: Final = 8 * MIB
_FEW_PARTS: Final = 16  # with more parts in flight than this, parts get no smaller than ``_START_BYTES``
_LEAST_BYTES: Final = 1 * MIB  # a block of the cache
_MOST_BYTES: Final = 16 * MIB  # measured: parts twice as large cost no less
_SAMPLES: Final = 32
_SAMPLES_MIN: Final = 8
_PART_S: Final = 0.0006  # event loop time per part, measured
_OVERHEAD: Final = 0.05  # largest share of a part's time spent waiting, and of the loop's time spent on parts
_STEADY: Final = 1.5  # smaller changes are not worth making


class PartSize:
    """The size of the next objects' parts, for one bucket. Has no clock.

    A part is large enough that the wait for its first byte is a small share of its time. It is also large enough that
    all parts together need a small share of the event loop. It is no larger, because a part is the unit of retries,
    hedges and bytes in flight. So a far or fast store gets large parts, a slow store small ones. If the budget has no
    room for that many parts of 8 MiB, fewer are in flight. Smaller parts would cost the event loop more than they
    bring.

    Args:
        fixed_bytes: fixed part size; 0: as measured.
        parts_in_flight: concurrent parts of all objects together.
        budget_bytes: bytes of all parts in flight together.
    """

    def __init__(self, fixed_bytes: int, parts_in_flight: int, budget_bytes: int) -> None:
        self._fixed_bytes = fixed_bytes
        self._parts_in_flight = parts_in_flight
        memory_bytes = budget_bytes // parts_in_flight // MIB * MIB
        floor_bytes = min(_START_BYTES, budget_bytes // min(parts_in_flight, _FEW_PARTS) // MIB * MIB)
        self._most_bytes = max(min(_MOST_BYTES, memory_bytes), floor_bytes, min(_LEAST_BYTES, budget_bytes))
        self._aim_bytes = min(_START_BYTES, self._most_bytes)
        self._waits_s: deque[float] = deque(maxlen=_SAMPLES)
        self._rates: deque[float] = deque(maxlen=_SAMPLES)

    def __repr__(self) -> str:
        return f"PartSize({self.aim_bytes} bytes)"

    @property
    def aim_bytes(self) -> int:
        """Part size for large objects."""
        return self._fixed_bytes or self._aim_bytes

    def of(self, size_bytes: int) -> int:
        """Return the part size of one object: close to the aim, and such that all its parts are about equal."""
        if self._fixed_bytes:
            return self._fixed_bytes
        if self._aim_bytes < MIB:  # the budget has no room for more
            return self._aim_bytes
        count = max(1, round(size_bytes / self._aim_bytes))
        return max(-(-size_bytes // count // MIB) * MIB, MIB)

    def note(self, size_bytes: int, first_byte_s: float, whole_s: float) -> None:
        """Record a part that arrived whole.

        Args:
            size_bytes: size of the part.
            first_byte_s: time from its request to its first byte.
            whole_s: time from its request to its end.
        """
        if self._fixed_bytes or size_bytes < _LEAST_BYTES:
            return
        self._waits_s.append(first_byte_s)
        self._rates.append(size_bytes / max(whole_s - first_byte_s, 1e-6))
        if len(self._rates) < _SAMPLES_MIN:
            return
        rate, wait_s = statistics.median(self._rates), statistics.median(self._waits_s)
        waiting_bytes = rate * wait_s * (1 - _OVERHEAD) / _OVERHEAD
        loop_bytes = rate * self._parts_in_flight * _PART_S / _OVERHEAD
        wanted = max(waiting_bytes, loop_bytes, _LEAST_BYTES)
        aim_bytes = min(round(wanted / MIB) * MIB, self._most_bytes)
        if not 1 / _STEADY < aim_bytes / self._aim_bytes < _STEADY or aim_bytes == self._most_bytes:
            self._aim_bytes = aim_bytes
