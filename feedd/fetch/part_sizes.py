"""How large the parts of an object should be: from what parts of its bucket took lately. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from feedd.units import MIB

_START_BYTES: Final = 8 * MIB
_FEW_PARTS: Final = 16  # for more of them parts get no smaller than ``_START_BYTES``
_LEAST_BYTES: Final = 1 * MIB  # a block of the cache
_MOST_BYTES: Final = 16 * MIB  # measured: twice as large costs no less
_SAMPLES: Final = 32
_SAMPLES_MIN: Final = 8
_PART_S: Final = 0.0006  # of the event loop for each part, measured
_OVERHEAD: Final = 0.05  # share of its time that a part may spend waiting, and of the loop's that parts may take
_STEADY: Final = 1.5  # smaller changes are not worth making


class PartSize:
    """The size of the next objects' parts, for one bucket. Has no clock.

    Large enough that the wait for the first byte is a small share of a part's time, and that all parts together keep
    the event loop busy for a small share of its; no larger, because a part is what is sent again, hedged and held in
    flight. So a far or fast store has large parts, a slow one small ones. Where the budget has no room for so many
    parts of 8 MiB fewer are in flight: smaller ones would cost the event loop more than they bring.

    Args:
        fixed_bytes: always that; 0: as measured.
        parts_in_flight: of all objects together.
        budget_bytes: of all parts in flight together.
    """

    def __init__(self, fixed_bytes: int, parts_in_flight: int, budget_bytes: int) -> None:
        self._fixed_bytes = fixed_bytes
        self._parts_in_flight = parts_in_flight
        room_bytes = budget_bytes // parts_in_flight // MIB * MIB
        floor_bytes = min(_START_BYTES, budget_bytes // min(parts_in_flight, _FEW_PARTS) // MIB * MIB)
        self._most_bytes = max(min(_MOST_BYTES, room_bytes), floor_bytes, min(_LEAST_BYTES, budget_bytes))
        self._aim_bytes = min(_START_BYTES, self._most_bytes)
        self._waits_s: deque[float] = deque(maxlen=_SAMPLES)
        self._rates: deque[float] = deque(maxlen=_SAMPLES)

    def __repr__(self) -> str:
        return f"PartSize({self.aim_bytes} bytes)"

    @property
    def aim_bytes(self) -> int:
        """Of parts of large objects."""
        return self._fixed_bytes or self._aim_bytes

    def of(self, size_bytes: int) -> int:
        """Return the size of the parts of an object: as near to the aim as makes all its parts alike."""
        if self._fixed_bytes:
            return self._fixed_bytes
        if self._aim_bytes < MIB:  # all there is room for
            return self._aim_bytes
        count = max(1, round(size_bytes / self._aim_bytes))
        return max(-(-size_bytes // count // MIB) * MIB, MIB)

    def note(self, size_bytes: int, first_byte_s: float, whole_s: float) -> None:
        """Take a part into account that came whole.

        Args:
            size_bytes: of the part.
            first_byte_s: from its request to its first byte.
            whole_s: from its request to its end.
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
