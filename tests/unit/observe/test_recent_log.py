"""The latest warnings and errors: each event once, bounded, without secrets."""

from __future__ import annotations

import io

import structlog

from feedd.observe.logs import configure_logging
from feedd.observe.recent_log import LINES_MAX, RECENT, TEXT_MAX


def test_warnings_and_errors_are_kept_without_secrets() -> None:
    """What the log shows is kept from warning on, counted by event, and never with a password."""
    RECENT.clear()
    configure_logging("json", "info", io.StringIO())
    try:
        log = structlog.get_logger()
        log.info("all is well")
        log.warning("disk is slow", disk="nvme0")
        log.warning("disk is slow", disk="nvme1")
        log.error("cannot sign", password="hunter2", url="https://me:hunter3@host/")
        log.warning("bad sample dropped", key="a")
        lines = RECENT.lines()
        assert [(one.text, one.level, one.count) for one in lines] == [
            ("disk is slow, disk=nvme1", "warning", 2),
            ("cannot sign, password=(redacted), url=https://(redacted)@host/", "error", 1),
        ]
        for number in range(2 * LINES_MAX):
            log.warning("event %d", number, text="x" * 2 * TEXT_MAX)
        assert len(RECENT.lines()) == LINES_MAX
        assert max(len(one.text) for one in RECENT.lines()) == TEXT_MAX
    finally:
        RECENT.clear()
        structlog.reset_defaults()
