"""How many rows a worker is sent at once. Pure bookkeeping.

Each message costs the daemon about half a millisecond whatever it says (measured: 20 us for each of 32 photographs, 14
for each of 64, where a photograph costs a worker 0.7 ms; 37 and 27 on a machine where it costs 1.6). But rows that take
long are sent few at a time: a worker that is killed, or asked to stop, has that much to lose.
"""

from __future__ import annotations

from typing import Final

from feedd.decode.work import CHUNK_ROWS_MAX

_WANTED_S: Final = 0.125  # a decode that is cancelled waits for what workers were sent: up to four of these


class Portions:
    """Rows per message, by what rows of the same arena took before.

    Args:
        rows: so many where nothing is known, and where rows take long; at most twice as many where they do not.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._took_s: dict[int, float] = {}  # a row, by arena

    def of(self, arena_id: int, rows: int) -> int:
        """Return how many rows of an arena's next batch, of ``rows``, to send at once: in equal parts."""
        most, took_s = self._rows, self._took_s.get(arena_id)
        if took_s is not None:
            twice = min(2 * self._rows, CHUNK_ROWS_MAX)
            most = twice if took_s * twice <= _WANTED_S else max(self._rows, int(_WANTED_S / took_s))
        return equal_part(rows, most)

    def took(self, arena_id: int, rows: int, busy_s: float) -> None:
        """Note what a batch of one row or more took, summed over workers."""
        self._took_s[arena_id] = busy_s / rows

    def forget(self, arena_id: int) -> None:
        """Take note that there is no such arena any more; unknown ones are ignored."""
        self._took_s.pop(arena_id, None)


def equal_part(rows: int, most: int) -> int:
    """Return how many of ``rows`` to send at once, ``most`` or fewer, so that as few messages have the same to do."""
    return -(-rows // max(-(-rows // most), 1))
