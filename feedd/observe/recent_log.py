"""The latest warnings and errors of this process, for ``feedd top`` and the web page."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import EventDict, WrappedLogger

LINES_MAX: Final = 50
TEXT_MAX: Final = 1000
_LEVELS: Final = {"warning": "warning", "warn": "warning", "error": "error", "exception": "error", "critical": "error"}
_ASIDE: Final = {"event", "time", "level", "exception", "lane"}
_SHOWN_ELSEWHERE: Final = {"bad sample dropped", "bad sample replaced", "more bad samples in the same batch"}


@dataclass(frozen=True, slots=True)
class RecentLine:
    """An event of the log.

    Attributes:
        text: the event with the fields of its last line, without secrets.
        level: "warning" or "error".
        at_s: when it came last, on the monotonic clock.
        count: how often it came.
    """

    text: str
    level: str
    at_s: float
    count: int = 1


class RecentLog:
    """Keeps the last events, each once with its number of lines; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held for a few assignments, in which a destructor may log
        self._events: OrderedDict[tuple[str, str], RecentLine] = OrderedDict()

    def lines(self) -> list[RecentLine]:
        """Return the events, the oldest first."""
        with self._lock:
            return list(self._events.values())

    def clear(self) -> None:
        """Forget all events."""
        with self._lock:
            self._events.clear()

    def note(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Processor: keep a warning or error, whose secrets have been removed before."""
        level = _LEVELS.get(str(event.get("level")))
        name = str(event.get("event", ""))
        if level is None or name in _SHOWN_ELSEWHERE:
            return event
        text, now_s = _text(name, event)[:TEXT_MAX], time.monotonic()
        with self._lock:
            before = self._events.pop((level, name), None)
            count = 1 if before is None else before.count + 1
            self._events[level, name] = RecentLine(text, level, now_s, count)
            if len(self._events) > LINES_MAX:
                self._events.popitem(last=False)
        return event


def _text(name: str, event: Mapping[str, object]) -> str:
    shown = {key: value for key, value in event.items() if key not in _ASIDE and not key.startswith("_")}
    return name + "".join(f", {key}={value}" for key, value in shown.items() if value not in (None, ""))


RECENT: Final = RecentLog()
"""Events of this process since its logging was configured."""
