"""Measures one stream: batches sent, and what it waited for while it had nothing to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd import metrics

if TYPE_CHECKING:
    from feedd.protocols import Clock, Recorder

# Waits are summed up and reported this often, because streams change state thousands of times per second.
_FLUSH_S = 0.25


class StreamMeter:
    """Attributes each moment of a stream to the trainer (no credit or slot), to the batch being made, or to neither."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._idle = True
        self._making = False
        self._credit_wait_s = 0.0
        self._batch_wait_s = 0.0

    def mark(self, *, idle: bool, making: bool) -> None:
        """Set the state from now on.

        Args:
            idle: there is nothing to write.
            making: a batch is being made.
        """
        now_s = self._clock.monotonic_s()
        if self._idle:
            if self._making:
                self._batch_wait_s += now_s - self._since_s
            else:
                self._credit_wait_s += now_s - self._since_s
            if self._batch_wait_s + self._credit_wait_s >= _FLUSH_S:
                self.flush()
        self._since_s = now_s
        self._idle = idle
        self._making = making

    def sent(self, transport: str, batch_count: int, size_bytes: int) -> None:
        """Count batches that were written."""
        self._recorder.count(metrics.SERVE_BATCHES, batch_count, transport=transport)
        self._recorder.count(metrics.SERVE_BATCH_BYTES, size_bytes, transport=transport)

    def flush(self) -> None:
        """Report the waits summed up so far."""
        self._recorder.count(metrics.SERVE_CREDIT_WAIT, self._credit_wait_s)
        self._recorder.count(metrics.SERVE_BATCH_WAIT, self._batch_wait_s)
        self._credit_wait_s = self._batch_wait_s = 0.0
