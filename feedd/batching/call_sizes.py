"""Chooses how many batches of pictures are made by one call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from feedd.batching.plain_batches import PlainBatches
    from feedd.values import SessionInfo
    from feedd.workers.worker_pool import DecodePool

_CALL_BUSY_S: Final = 0.2  # workers' time for the batches of a call


class CallSizes:
    """Chooses the batches of a session's next call, if a batch is much work.

    A batch is delivered later if others are made with it. So several are made together only if as many are being made
    already, no worker is idle, and all of them take workers at most ``_CALL_BUSY_S``.

    Attributes:
        batch_rows: rows of the latest batch.
    """

    def __init__(self, pool: DecodePool, arena_id: int, most: int) -> None:
        """Bind to the arena of the session; ``most``: maximum number of batches of a call."""
        self.batch_rows = 1
        self._pool = pool
        self._arena_id = arena_id
        self._most = most
        self._latest: tuple[SessionInfo, SessionInfo] | None = None  # of ``applied``: the argument and the result

    @classmethod
    def of(cls, plain: PlainBatches, pool: DecodePool, arena_id: int, most: int) -> CallSizes | None:
        """Return the choice for a session, or None if each call makes ``most`` batches because they are little work."""
        return None if plain.are_copies or most == 1 else cls(pool, arena_id, most)

    def next_count(self, making_count: int) -> int:
        """Return how many batches to make by the next call, while ``making_count`` others are being made."""
        rows = self._pool.rows_within(_CALL_BUSY_S, self._arena_id)
        return max(1, min(self._most, making_count, rows // self.batch_rows))

    def applied(self, info: SessionInfo, making_count: int) -> SessionInfo:
        """Return the info with ``next_count`` batches per call. Fewer requests wait for more."""
        count, latest = self.next_count(making_count), self._latest
        if latest is None or latest[0] is not info or latest[1].batches_per_call != count:
            latest = self._latest = info, replace(info, batches_per_call=count, batches_per_call_least=count)
        return latest[1]
