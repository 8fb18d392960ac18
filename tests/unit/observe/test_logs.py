"""Logs: one line per event in the form asked for, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from feedd.observe.logs import REDACTED, configure_logging, redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "wJalrXUtnFEMI-K7MDENG"


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_time_level_and_fields() -> None:
    """A JSON record is one object per line with time, level, event and the fields given."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("ready", sessions=2)
    structlog.get_logger().debug("too quiet")
    (line,) = _lines(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line.pop("time", "").__class__ is str
    assert line == {"event": "ready", "level": "info", "sessions": 2}


def test_library_records_take_the_same_form() -> None:
    """Warnings of libraries arrive in the same form; their chatter does not arrive."""
    stream = io.StringIO()
    configure_logging("json", "debug", stream)
    logging.getLogger("botocore").info("chatter")
    logging.getLogger("botocore").warning("password=%s", SECRET)
    (line,) = _lines(stream)
    assert line["logger"] == "botocore"
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_never_reach_the_log(form: str) -> None:
    """Secrets are hidden by name, by shape, in nested values, in exceptions and in tracebacks."""
    stream = io.StringIO()
    configure_logging("json" if form == "json" else "text", "info", stream)
    log = structlog.get_logger()
    log.info("a", aws_secret_access_key=SECRET, headers={"Authorization": SECRET, "x": [f"token={SECRET}"]})
    log.info("b", session_token=SECRET.encode(), Password=SECRET, note=f"https://user:{SECRET}@host/path")
    signed = f"GET /x?X-Amz-Signature={SECRET}&X-Amz-Security-Token={SECRET}&part=1"
    log.info(signed, error=ValueError(f"Signature={SECRET}"))
    try:
        int(f"Authorization: Bearer {SECRET}")
    except ValueError:
        log.exception("c")
    assert SECRET not in stream.getvalue()
    assert REDACTED in stream.getvalue()
    assert "part=1" in stream.getvalue()


def test_counts_are_not_secrets() -> None:
    """A number whose name merely looks like a secret stays readable."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("batch", tokens=2048, token_count=7, s3={"bucket": "b"})
    (line,) = _lines(stream)
    assert (line["tokens"], line["token_count"], line["s3"]) == (2048, 7, {"bucket": "b"})


def test_plain_texts_are_untouched() -> None:
    """Redaction leaves ordinary URLs and words alone."""
    for text in ("s3://bucket/key-1.tar", "expected 3 tokens, got 2", "https://host:443/path?x=1"):
        assert redact_text(text) == text
