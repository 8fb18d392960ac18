"""A thread that ends the process when one of its event loops is stuck, independent of any supervisor."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from feedd.flow.log_sink import LogSink

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType, TracebackType

EXIT_CODE: Final = 70  # EX_SOFTWARE, which differs from a clean end, a wrong configuration and a failed start
TICK_S: Final = 1.0
SERVING_LOOP: Final = "the event loop"
FETCHING_LOOP: Final = "the event loop of fetches"
_WORDS_S: Final = 2.0  # longest time to write an event and all stacks
_TICKS_LEAST: Final = 5  # per limit; with fewer, chance would decide
_CPU_PER_CORE_S: Final = 4.0  # CPU time that all cores may use while the thread waits to run


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """When an event loop counts as stuck.

    Attributes:
        dump_after_s: seconds of silence after which all threads' stacks are logged; 0: never.
        exit_after_s: seconds of silence after which the process ends with ``EXIT_CODE``; 0: never.
    """

    dump_after_s: float = 10.0
    exit_after_s: float = 60.0


class Watchdog:
    """Counts its own wake-ups between two signs of life of each loop. A context manager.

    It counts wake-ups instead of reading the clock. After a stopped process or a suspended machine, much time has
    passed but only one wake-up. A loop that holds the interpreter lock keeps this thread from waking up at all. For
    that case, a kernel timer of the process's CPU time, reset at each wake-up, ends the process by SIGPROF. That timer
    also stands still while the process is stopped.
    """

    def __init__(self, options: WatchdogOptions) -> None:
        limits_s = [limit_s for limit_s in (options.dump_after_s, options.exit_after_s) if limit_s]
        self._options = options
        self.tick_s = min([TICK_S, *(limit_s / _TICKS_LEAST for limit_s in limits_s)])
        self._watched = {SERVING_LOOP}
        self._alive = {SERVING_LOOP}
        self._silent_counts: dict[str, int] = {}  # used by the thread only
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedd-watchdog", daemon=True) if limits_s else None

    def alive(self, loop: str = SERVING_LOOP) -> None:
        """Give a sign of life; must be called more often than every ``tick_s``, until ``forget``."""
        self._watched.add(loop)
        self._alive.add(loop)

    def forget(self, loop: str) -> None:
        """Watch a loop no longer, because it ends."""
        self._watched.discard(loop)

    def stop(self) -> None:
        """Stop watching; idempotent."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        if self._options.exit_after_s:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)

    def __enter__(self) -> Self:
        if self._options.exit_after_s:
            # Dumps all stacks, then the default action ends the process.
            faulthandler.register(signal.SIGPROF, chain=True)
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while True:
            if self._options.exit_after_s:
                limit_s = self._options.exit_after_s + _CPU_PER_CORE_S * (os.cpu_count() or 1)
                signal.setitimer(signal.ITIMER_PROF, limit_s)
            if self._stop.wait(self.tick_s):
                return
            self.look()

    def look(self) -> None:
        """Evaluate one tick."""
        alive, self._alive = self._alive, set()
        for loop in tuple(self._watched):
            before_count = self._silent_counts.get(loop, 0)
            count = self._silent_counts[loop] = 0 if loop in alive else before_count + 1
            self._judge(loop, before_count * self.tick_s, count * self.tick_s)

    def _judge(self, loop: str, before_s: float, silent_s: float) -> None:
        if self._reached(self._options.exit_after_s, before_s, silent_s):
            self._log_now(f"{loop} is stuck: the process ends", silent_s)
            os._exit(EXIT_CODE)
        if self._reached(self._options.dump_after_s, before_s, silent_s):
            self._log_now(f"{loop} is stuck", silent_s)

    @staticmethod
    def _reached(limit_s: float, before_s: float, silent_s: float) -> bool:
        return bool(limit_s) and before_s < limit_s <= silent_s

    @staticmethod
    def _log_now(event: str, silent_s: float) -> None:
        """Write to the log, but return in any case: a disk that hangs must not keep the process."""
        stacks = sys._current_frames()  # noqa: SLF001 - documented
        speaker = threading.Thread(target=_write_now, args=(event, silent_s, stacks), daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            speaker.start()
            speaker.join(_WORDS_S)


def _write_now(event: str, silent_s: float, stacks: Mapping[int, FrameType]) -> None:
    """Write an event and stacks without the log's locks, which the loop's thread may hold."""
    line = {"event": event, "level": "error", "silent_s": round(silent_s, 1), "pid": os.getpid()}
    with contextlib.suppress(Exception):  # without standard error there is nobody to say it to
        LogSink.on(sys.stderr.fileno()).write(f"{json.dumps(line)}\n{_rendered(stacks)}")


def _rendered(stacks: Mapping[int, FrameType]) -> str:
    """Return stacks as ``faulthandler`` writes them; that would hold the interpreter's lock while it writes."""
    lines = []
    for ident, top in stacks.items():
        lines.append(f"Thread 0x{ident:016x} (most recent call first):")
        frame: FrameType | None = top
        while frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
            frame = frame.f_back
        lines.append("")
    return "\n".join(lines)
