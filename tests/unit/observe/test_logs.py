"""Logs: one line per event in the form asked for, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
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


def test_fields_of_the_process_are_in_every_line() -> None:
    """Also of other threads, which see no context variables, and of libraries."""
    stream = io.StringIO()
    configure_logging("json", "info", stream, fields={"lane": 3})
    for say in (structlog.get_logger().info, logging.getLogger("library").warning):
        thread = threading.Thread(target=say, args=("said",))
        thread.start()
        thread.join()
    assert [json.loads(line)["lane"] for line in stream.getvalue().splitlines()] == [3, 3]


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


@pytest.mark.parametrize("user", [f"user:{SECRET}", f":{SECRET}", SECRET, f"user:{SECRET}@{SECRET}"])
def test_what_stands_before_a_host_is_hidden(user: str) -> None:
    """A password, a token alone, and a password with an @ in it."""
    assert redact_text(f"at https://{user}@host:443/path@1 now") == f"at https://{REDACTED}@host:443/path@1 now"


def test_counts_are_not_secrets() -> None:
    """A number, or a folder of tokenizers, whose name merely looks like a secret stays readable."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    config = {"decode.tokenizers": "/srv/tokenizers"}
    structlog.get_logger().info("batch", tokens=2048, token_count=7, s3={"bucket": "b"}, config=config)
    (line,) = _lines(stream)
    assert line["config"] == config
    assert (line["tokens"], line["token_count"], line["s3"]) == (2048, 7, {"bucket": "b"})


def test_plain_texts_are_untouched() -> None:
    """Redaction leaves ordinary URLs and words alone."""
    for text in ("s3://bucket/key-1.tar", "expected 3 tokens, got 2", "https://host:443/path?x=1"):
        assert redact_text(text) == text


def test_a_long_text_is_cut_and_says_so() -> None:
    """Of a text the log holds the first characters and the number of those left out; of a list, its first entries."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("x" * 5000, urls=["y" * 5000] * 1000, about=dict.fromkeys(map(str, range(1000)), "z"))
    (line,) = _lines(stream)
    urls, about = line["urls"], line["about"]
    assert line["event"] == "x" * 2048 + "… (2952 characters more)"
    assert isinstance(urls, list)
    assert (len(urls), urls[-1]) == (257, "… (744 entries more)")
    assert isinstance(about, dict)
    assert len(about) == 257
    assert len(stream.getvalue()) < 1 << 20


@pytest.mark.parametrize("before", range(2020, 2060, 3))
def test_a_secret_at_the_cut_is_hidden_too(before: int) -> None:
    """Wherever a text is cut, nothing of a password is left that stood there."""
    for text in (
        f"https://user:{SECRET}@host",
        f"https://:{SECRET}@host",
        f"token={SECRET} ",
        f"Authorization: Bearer {SECRET} {SECRET}",
    ):
        shown = redact_text("." * (before - 30) + " " + text + "." * 4096)
        assert SECRET[:6] not in shown


def test_a_long_traceback_keeps_its_ends() -> None:
    """Of a traceback the log holds the first and the last lines, without a secret from between."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    error = ValueError("first\n" + f"password={SECRET}\n" * 10_000 + "last")
    structlog.get_logger().error("failed", exc_info=error)
    (line,) = _lines(stream)
    told = str(line["exception"])
    assert told.startswith("ValueError: first")
    assert told.endswith("last")
    assert "characters left out" in told
    assert len(told) < 40_000
    assert SECRET[-6:] not in told


def test_a_person_at_a_terminal_reads_short_lines() -> None:
    """With ``brief`` a line has the time of day, sizes in units, lists without brackets, and nothing that is empty."""
    stream = io.StringIO()
    configure_logging("text", "info", stream, brief=True, without=("ready",))
    log = structlog.get_logger("test")
    log.info("ready")
    log.info(
        "stopped", fetched_bytes=3 << 20, hint="", steps=None, urls=["s3://b/1", "s3://b/2"], config={"a": 1}, batches=0
    )
    (line,) = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d \[info +\] stopped +", line)
    assert line.split(maxsplit=4)[-1].endswith("batches=0 fetched_bytes=3MiB urls='s3://b/1, s3://b/2'")
