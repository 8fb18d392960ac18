"""Structured logs to standard error: one JSON object or one readable line per event, with secrets redacted.

Everything else that the process says goes there through the same stream, which never raises and counts its losses.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import re
import select
import stat
import sys
import threading
import time
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TextIO, cast

import structlog

from feedd import metrics
from feedd.observe.recent_log import RECENT
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from structlog.typing import EventDict, Processor, WrappedLogger

    from feedd.protocols import Recorder

REDACTED = "(redacted)"
_SECRET_NAME = re.compile(
    r"secret|token(?!iz)|passw|passphrase|credential|authorization|cookie|signature|private.?key|api.?key|account.?key"
    r"|access.?key(?!.?id)|otlp.{0,20}headers|^sig$|(?:^|_)pwd",
    re.IGNORECASE,
)
# Names of secrets inside texts: in signed URLs, header dumps, XML, JSON, connection strings and environments. Each
# pattern here takes time by the length of the text: no two parts that can match the same characters stand in a row.
_NAMES = (
    r"(?:secret|shared|private|account|api|subscription|encryption)[-_]?(?:access)?[-_]?key",
    r"secret access key",
    r"secret",
    r"(?:access|auth|refresh|session|security|id|api|bearer|oauth|hub|hf|sas|identity|private)[-_]?token",
    r"(?<!\w)token",
    r"(?<![^\W_])(?:sig|pwd)",
    r"(?:shared[-_]?access[-_]?)?signature",
    r"x-amz-credential",
    r"passw(?:or)?d|passphrase",
    r"(?-i:(?<=[A-Z0-9]_)(?:TOKEN|PASS))",
)
# Between a name and its value: quotes, also escaped ones, then = or : or the end of an XML tag.
_SECRET_TEXT = re.compile(
    rf"""(?P<name>(?:{"|".join(_NAMES)})"""
    r"""\\*["']?(?:\s*(?:[=:]|%3D)\s*(?:b(?=["']))?|>(?=[^\s<]))\\*["']?)"""
    r"""(?:(?<=")[^"\n\\]+|(?<=')[^'\n\\]+|[^\s&"',;}<>\\]+)""",
    re.IGNORECASE,
)
# Headers whose value has several words; also in a list of pairs.
_SECRET_LINE = re.compile(
    r"""(?P<name>(?:authorization|cookie|otlp_(?:[a-z]{1,9}_)?headers)"""
    r"""\\*["']?\s*[=:,]\s*(?:b(?=["']))?\\*["']?)[^\n"'\\]+""",
    re.IGNORECASE,
)
# Secrets that are known by their own form. Of a text that was cut, the end may hold the start of one.
_FORMS = r"eyJ|hf_|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|sk-|AIza|ya29\."
_SCHEMES = r"(?:Bearer|Basic|SharedKey(?:Lite)?)\s{1,3}"
_PAIR = r"""A[KS]IA[A-Z0-9]{16}[\\"']{0,2}[\s:,;|/]{1,3}[\\"']{0,2}"""
_SECRET_FORM = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?s:.*?)(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    r"|\A[\w+/=\s\\]*-----END [A-Z ]{0,30}PRIVATE KEY-----"
    rf"|(?<![\w-])(?:{_FORMS})[\w-]{{16,}}(?:\.[\w.-]*)?"
    rf"|(?P<pair>(?<!\w){_PAIR})[A-Za-z0-9/+=]{{40}}(?![\w/+=])"
    rf"""|(?P<scheme>(?<!\w){_SCHEMES})(?=[^\s\d=]{{0,200}}[\d=])[^\s"',;<>\\]{{8,}}"""
)
_CUT_FORM = re.compile(rf"(?P<name>(?<!\w)(?:{_PAIR}|{_SCHEMES}|{_FORMS}))[\w./+=~-]{{0,40}}\Z")
# Found by its "://": a pattern for the scheme before it would be tried from each of its letters.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\s]+@|[^/\s:@]*:[^/\s@]+(?P<cut>\Z))")

TEXT_MAX = 2048
"""Maximum characters of a logged text; the rest is cut off before the search for secrets."""
TRACEBACK_MAX = 32 << 10
"""Maximum characters of a logged traceback: half from its start, half from its end."""
ITEMS_MAX = 256
"""Maximum entries of a logged list, tuple or dict."""


def redact_text(text: str, limit: int = TEXT_MAX) -> str:
    """Return the first ``limit`` characters of ``text``, with everything that looks like a secret replaced."""
    left_out = len(text) - limit
    if left_out <= 0:
        return _redacted(text, cut=False)
    return f"{_redacted(text[:limit], cut=True)}… ({left_out} characters more)"


def redact_traceback(text: str) -> str:
    """Return a traceback with secrets replaced; a long traceback is cut to its first and last lines."""
    if len(text) <= TRACEBACK_MAX:
        return _redacted(text, cut=False)
    half = TRACEBACK_MAX // 2
    # Whole lines, because the end of a secret cannot be recognised without its start.
    _, _, tail = text[-half:].partition("\n")
    left_out = len(text) - half - len(tail)
    return f"{_redacted(text[:half], cut=True)}\n… ({left_out} characters left out)\n{_redacted(tail, cut=False)}"


def _hidden(match: re.Match[str]) -> str:
    """Return what stands for a secret: its name stays."""
    return next(filter(None, match.groups()), "") + REDACTED


def _redacted(text: str, *, cut: bool) -> str:
    """Return ``text`` with secrets replaced; ``cut``: the text's end may have cut off part of a password."""
    for shape in (_SECRET_FORM, _SECRET_LINE, _SECRET_TEXT, *((_CUT_FORM,) if cut else ())):
        text = shape.sub(_hidden, text)

    def hidden(match: re.Match[str]) -> str:
        if match["cut"] is None:
            return f"{REDACTED}@"
        return REDACTED if cut else match[0]

    return _USER_INFO.sub(hidden, text)


def _redact_value(name: str, value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value  # "tokens=2048" is a count, not a secret
    if _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, dict):
        kept = {key: _redact_value(str(key), value[key]) for key in islice(value, ITEMS_MAX)}
        return kept | ({"…": f"{len(value) - ITEMS_MAX} entries more"} if len(value) > ITEMS_MAX else {})
    if isinstance(value, list | tuple):
        more = [f"… ({len(value) - ITEMS_MAX} entries more)"] if len(value) > ITEMS_MAX else []
        return [_redact_value("", each) for each in value[:ITEMS_MAX]] + more
    if name == "exception":
        return redact_traceback(str(value))
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    return redact_text(text)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> Mapping[str, object]:
    """Processor: replace secrets, found by name or by form, in nested values too."""
    # Names that start with an underscore belong to structlog and are never rendered.
    return {name: value if name.startswith("_") else _redact_value(name, value) for name, value in event.items()}


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> Mapping[str, object]:
    """Processor: put time, level and event first."""
    first = {name: event[name] for name in ("time", "level", "event") if name in event}
    return first | {name: value for name, value in event.items() if name not in first}


def _plain_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor: render tracebacks to text before redaction, because an exception's text may quote a signed URL."""
    return structlog.processors.format_exc_info(_logger, _method, event)


_LEFT_OUT = frozenset({"config", "origins", "daemon_id"})  # `feedd check` shows the first two as a table


def _shortened(_logger: WrappedLogger, _method: str, event: EventDict) -> Mapping[str, object]:
    """Processor: keep what a person at a terminal reads, and write sizes and lists as people do."""
    kept = {name: value for name, value in event.items() if name not in _LEFT_OUT and value not in _NOTHING}
    return {name: _readable(name, value) for name, value in kept.items()}


_NOTHING: tuple[object, ...] = (None, "", [], (), {})


def _readable(name: str, value: object) -> object:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _without(events: Collection[str]) -> Processor:
    """Return a processor that drops these events."""

    def drop(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event.get("event") in events:
            raise structlog.DropEvent
        return event

    return drop


def _with_fields(fields: Mapping[str, object]) -> Processor:
    """Return a processor that adds these fields."""

    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**fields, **event}

    return add


_DROPPED: Final = "log lines were dropped"
_FULL: Final = "its buffer is full, because no process reads it"
WAIT_S: Final = 0.2
"""Longest wait for room in a full pipe or terminal. After a line was dropped, nothing waits until a line is written."""


def _plain(count: int, reason: str) -> str:
    return f"feedd: {_DROPPED}: {count} ({reason})\n"


class LogSink(io.TextIOBase):
    """A text stream for a log, safe to call from any thread.

    A write that fails is dropped and counted. The count is written before the next line that can be written.

    Attributes:
        describe: renders the line that reports dropped lines, from their number and the reason.
    """

    def __init__(self, fd: int | None, write: Callable[[bytes | memoryview], int]) -> None:
        """Write to a descriptor or a stream.

        Args:
            fd: descriptor that ``write`` writes to; None: there is none, so nothing can wait for room.
            write: writes a part of the bytes and returns its length, as ``os.write`` does.
        """
        self.describe: Callable[[int, str], str] = _plain
        self._fd = fd
        self._write = write
        self._piece_bytes = sys.maxsize if fd is None else _piece_bytes(fd)
        # Reentrant, because the garbage collector may run a destructor that warns while a line is written.
        self._lock = threading.RLock()
        self._unsaid_count = 0  # dropped, and not yet reported by a line
        self._untaken_count = 0  # dropped, and not yet returned by `settle`
        self._reason = ""
        self._is_torn = False  # the last line has no end

    @classmethod
    def of(cls, stream: TextIO | LogSink | None) -> LogSink:
        """Return ``stream`` if it is a sink, else a sink that writes to it; None: one that writes nothing."""
        if isinstance(stream, LogSink):
            return stream
        sink = cls(None, len if stream is None else lambda data: _write_text(stream, data))
        sink.isatty = lambda: stream is not None and stream.isatty()  # type: ignore[method-assign]  # as the stream
        return sink

    @classmethod
    def on(cls, fd: int) -> LogSink:
        """Return a sink that writes to a descriptor."""
        return cls(fd, lambda data: os.write(fd, data))

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a constant here
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # a constant here
        """How characters are written that have no bytes."""
        return "backslashreplace"

    def fileno(self) -> int:
        """Return the descriptor.

        Raises:
            io.UnsupportedOperation: it has none.
        """
        return super().fileno() if self._fd is None else self._fd

    def isatty(self) -> bool:
        """Return whether a person may read it."""
        return self._fd is not None and os.isatty(self._fd)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write ``text`` or drop it.

        Raises:
            TypeError: ``text`` is not a str.
        """
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        if text:
            with self._lock:
                if not self._report() or not self._put(text, WAIT_S):
                    self._drop()
        return len(text)

    def settle(self) -> int:
        """Report earlier losses if writing works again; return the number of writes dropped since the last call."""
        with self._lock:
            self._report()
            count, self._untaken_count = self._untaken_count, 0
        return count

    def _report(self) -> bool:
        """Write the count of dropped lines, if there are any; return whether nothing is left to report."""
        if not self._unsaid_count:
            return True
        if not self._put(self.describe(self._unsaid_count, self._reason), 0.0):
            return False
        self._unsaid_count = 0
        return True

    def _drop(self) -> None:
        self._unsaid_count += 1
        self._untaken_count += 1
        RECENT.note(None, "", {"event": _DROPPED, "level": "warning", "error": self._reason})

    def _put(self, text: str, wait_s: float) -> bool:
        """Write ``text``; return whether all of it was written."""
        # A line that was cut off ends here, so that readers find the next one.
        left = memoryview(("\n" * self._is_torn + text).encode("utf-8", "backslashreplace"))
        end_s = time.monotonic() + wait_s
        while left:
            try:
                self._await_room(end_s)
                count = self._write(left[: self._piece_bytes])
                if not count:
                    raise BlockingIOError("nothing was written")
            except (OSError, ValueError) as error:
                is_passing = isinstance(error, BlockingIOError | InterruptedError)
                if is_passing and self._fd is not None and time.monotonic() < end_s:
                    continue
                self._reason = _FULL if isinstance(error, BlockingIOError) else _reason(error)
                return self._is_torn and bytes(left) == b"\n"  # only the end of the line is missing, and follows
            self._is_torn = left[count - 1] != ord("\n")
            left = left[count:]
        self._is_torn = False  # a progress display ends its lines later
        return True

    def _await_room(self, end_s: float) -> None:
        """Wait until a write would not block.

        Raises:
            BlockingIOError: it would at ``end_s``.
        """
        if self._fd is not None:
            room = select.poll()
            room.register(self._fd, select.POLLOUT)
            if not room.poll(max(0.0, end_s - time.monotonic()) * 1000):
                raise BlockingIOError


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _write_text(stream: TextIO, data: bytes | memoryview) -> int:
    stream.write(bytes(data).decode())
    stream.flush()
    return len(data)


def _piece_bytes(fd: int) -> int:
    """Return the largest write that blocks in no case after the descriptor had room."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode) or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK:
            return sys.maxsize
    return 1 if os.isatty(fd) else select.PIPE_BUF  # a terminal with any room counts as ready


def take_stderr() -> None:
    """Make ``sys.stderr`` a sink. From then on, no print, log line, traceback or exit fails because of it.

    Standard descriptors that are closed become ``/dev/null``. Otherwise the next file opened would get their numbers,
    and libraries would write their messages into that file.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - the function's signature
    _stop_blocking(2)
    sys.stderr = cast("TextIO", LogSink.on(2))


def count_dropped(recorder: Recorder) -> None:
    """Count what the process's log has lost since the last call; report the loss in the log if writing works again."""
    sink = sys.stderr
    if isinstance(sink, LogSink) and (count := sink.settle()):
        recorder.count(metrics.LOG_DROPPED, count)


def _stop_blocking(fd: int) -> None:
    """Make a pipe or terminal non-blocking for this process and its children, not for others that write to it."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.isatty(fd):
        return
    with contextlib.suppress(OSError):  # of another user, or nobody reads the pipe: the sink asks for room first
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.dup2(own, fd)
        os.close(own)


def _dropped_line(steps: list[Processor], count: int, reason: str) -> str:
    """Return the line that reports dropped lines. The sink has noted each of them in the recent log."""
    event: object = {"event": _DROPPED, "count": count, "error": reason}
    for step in steps:
        event = step(None, "warning", cast("EventDict", event))
    return f"{event}\n"


def configure_logging(
    form: Literal["json", "text"],
    level: str = "info",
    stream: TextIO | None = None,
    *,
    brief: bool = False,
    without: Collection[str] = (),
    fields: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Send the records of structlog and the standard library to ``stream`` in one form.

    Args:
        form: ``json`` for machines, ``text`` for people.
        level: lowest level shown: debug, info, warning or error.
        stream: output stream, which may fail; None: the process's standard error.
        brief: for a person at a terminal: local time of day, sizes in units, and no effective configuration.
        without: events that the process reports in other ways.
        fields: fields of every event, from whatever thread.
    """
    out = LogSink.of(stream or sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    rendered: list[Processor] = [
        *((_without(without),) if without else ()),
        *((_with_fields(fields),) if fields else ()),
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if brief else "iso", utc=not brief, key="time"),
        _plain_exception,
        *((_shortened,) if brief else ()),
        redact,
    ]
    shared = [*rendered, RECENT.note, _in_order]
    renderer: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=out.isatty() and not os.environ.get("NO_COLOR"), pad_event_to=28, timestamp_key="time"
        )
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", out)),
        cache_logger_on_first_use=False,  # so that a second call (tests, --log-level) takes effect everywhere
    )
    out.describe = partial(_dropped_line, [*rendered, _in_order, renderer])
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))  # log messages of libraries only if something is wrong
