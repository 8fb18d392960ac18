"""Looks at the daemon's queues twice a second: how much waits, and for which share of the time anything does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd import metrics

if TYPE_CHECKING:
    from feedd.catalog.sources import Sources
    from feedd.protocols import Clock, Recorder
    from feedd.serve.session_registry import Sessions

PERIOD_S = 0.5


class StageWatch:
    """Measures the queues between the stages without a cost for each sample. ``Autoscaler`` measures that of tasks.

    Args:
        recorder: takes the measurements.
        sources: their fetches are looked at.
        sessions: their batches and credits are looked at.
    """

    def __init__(self, recorder: Recorder, sources: Sources, sessions: Sessions) -> None:
        self._recorder = recorder
        self._sources = sources
        self._sessions = sessions
        self._transfer_busy_s = 0.0

    async def watch(self, clock: Clock) -> None:
        """Look every half second until cancelled."""
        looked_s = clock.monotonic_s()
        while True:
            await clock.sleep_s(PERIOD_S)
            before_s, looked_s = looked_s, clock.monotonic_s()
            self.look(looked_s - before_s)

    def look(self, elapsed_s: float) -> None:
        """Record what waits; what waits now counts as waiting for the whole time since the last look."""
        fetches = self._sources.scheduled
        streams = self._sessions.streams
        ready = [size_bytes for stream in streams for size_bytes in stream.ready_sizes]
        self._note("parts", elapsed_s, fetches.waiting_count, fetches.waiting_bytes)
        self._note("batches", elapsed_s, len(ready), sum(ready))
        self._note("credits", elapsed_s, sum(stream.credit_count for stream in streams))
        self._recorder.count(metrics.FETCH_BUSY, elapsed_s if fetches.in_flight_count else 0.0)
        busy_s = self._sources.buckets.transfer_busy_s
        self._recorder.count(metrics.FETCH_TRANSFER_BUSY, max(0.0, busy_s - self._transfer_busy_s))
        self._transfer_busy_s = busy_s

    def _note(self, queue: str, elapsed_s: float, count: int, size_bytes: int | None = None) -> None:
        self._recorder.gauge(metrics.QUEUE_ITEMS, count, queue=queue)
        if size_bytes is not None:
            self._recorder.gauge(metrics.QUEUE_BYTES, size_bytes, queue=queue)
        self._recorder.count(metrics.QUEUE_NONEMPTY, elapsed_s if count else 0.0, queue=queue)
