"""Logs why a trainer waits for a batch, and gives up a daemon that no longer answers."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd_client.autostart import end_silent
from feedd_client.errors import DaemonUnreachable
from feedd_client.transport import answers

if TYPE_CHECKING:
    from feedd_client.session import Stream
    from feedd_client.transport import Address

_log: Final = logging.getLogger("feedd_client")
HEALTH_TIMEOUT_S: Final = 5.0
_NOTICE_S: Final = 20.0  # a wait of this length is logged
_HEARTBEAT_S: Final = 15.0
_TICK_S: Final = 1.0
_REASONS: Final = {
    "fetching": "it is fetching data",
    "decoding": "it is decoding",
    "space": "the batches this trainer holds leave no room",
}


def heartbeat_s(stall_timeout_s: float) -> float:
    """Return the interval, in seconds, at which the daemon is asked to send heartbeats."""
    return min(_HEARTBEAT_S, stall_timeout_s / 4)


@dataclass(slots=True, eq=False)
class _Wait:
    """One wait for a batch, from the first receive until a message brings the batch.

    Attributes:
        stream: a weak reference, because the watching thread must not keep a lost stream, which maps the arena.
        reported: reasons that were logged.
    """

    stream: weakref.ref[Stream]
    address: Address
    began_s: float
    reported: set[str] = field(default_factory=set)


class StallWatch:
    """Watches one pass in a separate thread; the receiving thread reports when it waits.

    The daemon sends heartbeats while it works on a batch. After ``timeout_s`` without a message a health check decides.
    If the daemon does not answer, or its stream stays silent, the stream is given up and its reader reconnects. Silence
    is counted in the thread's own wake-ups, so that time in which this process was stopped does not count.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._notice_s = min(_NOTICE_S, timeout_s / 3)
        self._tick_s = min(_TICK_S, timeout_s / 12)
        self._wait: _Wait | None = None
        self._started = False
        self._watched: _Wait | None = None  # this and the next two: what the thread saw last
        self._message_count = 0
        self._silent_s = 0.0
        # A SimpleQueue, because ``stop`` may run in a finalizer and its put never waits for Python code.
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, stream: Stream) -> None:
        """Record that this pass waits for a batch of ``stream``."""
        if self._wait is None:
            self._wait = _Wait(weakref.ref(stream), stream.address, time.monotonic())
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="feedd-stall", daemon=True).start()

    def arrived(self) -> None:
        """Record that the batch has arrived."""
        wait, self._wait = self._wait, None
        if wait is not None and wait.reported:
            waited_s = time.monotonic() - wait.began_s
            _log.warning("the daemon at %s continues after %.0f s", wait.address.text, waited_s)

    def lost(self) -> None:
        """Record that the stream is lost; the code that reconnects logs it."""
        self._wait = None

    def stop(self) -> None:
        """End the thread; safe to call in a finalizer."""
        self._wait = None
        self._stopped.put(None)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        looked_s = time.monotonic()
        while self._sleep():
            before_s, looked_s = looked_s, time.monotonic()
            self._look(looked_s, looked_s - before_s)

    def _look(self, now_s: float, passed_s: float) -> None:
        wait = self._wait
        stream = None if wait is None else wait.stream()
        if wait is None or stream is None:
            self._watched = None
            return
        if wait is not self._watched or stream.message_count != self._message_count:
            self._watched, self._message_count, self._silent_s = wait, stream.message_count, 0.0
        elif stream.awaits_batch:
            # At most two ticks per wake-up: time in which this process was stopped is not silence of the daemon.
            self._silent_s += min(passed_s, 2 * self._tick_s)
        if now_s - wait.began_s >= self._notice_s:
            self._say(wait, stream, now_s)
        if self._silent_s >= self._timeout_s:
            self._judge(wait, stream)
            self._silent_s = 0.0

    def _sleep(self) -> bool:
        """Wait for the next look; return False if the watch was stopped."""
        try:
            self._stopped.get(timeout=self._tick_s)
        except queue.Empty:
            return True
        return False

    def _say(self, wait: _Wait, stream: Stream, now_s: float) -> None:
        """Log once per wait its reason, and once that the daemon went silent."""
        if self._silent_s >= self._notice_s:
            reason = "no heartbeat"
        elif stream.waiting_for:
            reason = _REASONS.get(stream.waiting_for, "it is at work")
        else:
            return
        if reason not in wait.reported:
            wait.reported.add(reason)
            text = "waiting for the daemon at %s for %.0f s: %s"
            _log.warning(text, wait.address.text, now_s - wait.began_s, reason)

    def _judge(self, wait: _Wait, stream: Stream) -> None:
        """Give up a silent daemon."""
        address = wait.address
        alive = answers(address, HEALTH_TIMEOUT_S)
        if wait is not self._wait:
            return
        state = "it answers a health check, but this stream is silent" if alive else "it answers no health check either"
        _log.warning("no message from the daemon at %s for %.0f s: %s", address.text, self._silent_s, state)
        if not alive:
            end_silent(address, HEALTH_TIMEOUT_S)
        message = f"expected a message from the daemon within {self._timeout_s:g} s, got none: {state}"
        stream.lose(DaemonUnreachable(message, object=address.text))
