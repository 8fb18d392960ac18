"""Structured logs to standard error: one JSON object or one readable line per event, with secrets redacted."""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TextIO, cast

import structlog

from feedd import metrics
from feedd.flow.log_sink import DROPPED_EVENT, LogSink
from feedd.observe.recent_log import RECENT
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
_CUT_FORM = re.compile(rf"(?P<name>(?<!\w)(?:{_PAIR}|{_SCHEMES}|{_FORMS}))[\w./+=~:-]{{0,60}}\Z")
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


def count_dropped(recorder: Recorder) -> None:
    """Count what the process's log has lost since the last call; report the loss in the log if writing works again."""
    sink = sys.stderr
    if isinstance(sink, LogSink) and (count := sink.settle()):
        recorder.count(metrics.LOG_DROPPED, count)


def _note_drop(reason: str) -> None:
    RECENT.note(None, "", {"event": DROPPED_EVENT, "level": "warning", "error": reason})


def _dropped_line(steps: list[Processor], count: int, reason: str) -> str:
    """Return the line that reports dropped lines; the recent log has each of them already."""
    event: object = {"event": DROPPED_EVENT, "count": count, "error": reason}
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
    out.on_drop = _note_drop
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
