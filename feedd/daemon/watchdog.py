"""A thread that ends the process when its event loop runs no more, whoever supervises it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

EXIT_CODE: Final = 70  # EX_SOFTWARE: told apart from a clean end, a wrong configuration and a failed start
TICK_S: Final = 1.0
_TICKS_LEAST: Final = 5  # per limit: fewer would make it a matter of chance
_CPU_PER_CORE_S: Final = 4.0  # what all cores may do while the thread merely waits for its turn


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """When a loop counts as stuck.

    Attributes:
        dump_after_s: silent for so long, the stacks of all threads go to the log; 0: never.
        exit_after_s: silent for so long, the process ends with ``EXIT_CODE``; 0: never.
    """

    dump_after_s: float = 10.0
    exit_after_s: float = 60.0


class Watchdog:
    """Counts its own wake-ups between two signs of life of the loop. A context manager.

    Wake-ups and not the clock: a process that was stopped, or a machine that was suspended, finds that much time has
    passed and only one tick. A loop that holds the interpreter's lock keeps this thread from waking up at all. The
    kernel's timer of the process's own CPU time, which the thread pushes back at each wake-up, then ends the process by
    SIGPROF. That timer stands still as well while the process is stopped.
    """

    def __init__(self, options: WatchdogOptions) -> None:
        limits_s = [limit_s for limit_s in (options.dump_after_s, options.exit_after_s) if limit_s]
        self._options = options
        self.tick_s = min([TICK_S, *(limit_s / _TICKS_LEAST for limit_s in limits_s)])
        self._alive = True
        self._silent_count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedd-watchdog", daemon=True) if limits_s else None

    def alive(self) -> None:
        """Give a sign of life; more often than every ``tick_s``."""
        self._alive = True

    def stop(self) -> None:
        """Watch no more; idempotent."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        if self._options.exit_after_s:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)

    def __enter__(self) -> Self:
        if self._options.exit_after_s:
            faulthandler.register(signal.SIGPROF, chain=True)  # dumps all stacks, then the default ends the process
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
        """Judge one tick."""
        alive, self._alive = self._alive, False
        before_s = self._silent_count * self.tick_s
        self._silent_count = 0 if alive else self._silent_count + 1
        silent_s = self._silent_count * self.tick_s
        if self._reached(self._options.exit_after_s, before_s, silent_s):
            self._tell("the event loop is stuck: the process ends", silent_s)
            os._exit(EXIT_CODE)
        if self._reached(self._options.dump_after_s, before_s, silent_s):
            self._tell("the event loop is stuck", silent_s)

    @staticmethod
    def _reached(limit_s: float, before_s: float, silent_s: float) -> bool:
        return bool(limit_s) and before_s < limit_s <= silent_s

    @staticmethod
    def _tell(event: str, silent_s: float) -> None:
        """Write to the log without its locks: the loop's thread may hold them."""
        line = {"event": event, "level": "error", "silent_s": round(silent_s, 1), "pid": os.getpid()}
        os.write(sys.stderr.fileno(), json.dumps(line).encode() + b"\n")
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
