"""What is learned of the store's time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from structlog.testing import capture_logs

from feedd.fetch.s3.client import ClockOffset


def test_offset_is_the_difference() -> None:
    """The Date header tells how far the clocks are apart; it is logged once, however many answers say so."""
    clock = ClockOffset()
    with capture_logs() as logs:
        for _ in range(3):
            there = datetime.now(UTC) + timedelta(minutes=20)  # noqa: TID251 - the header is a date
            assert clock.learn(format_datetime(there, usegmt=True), "s3://b/k")
    assert clock.offset_s == pytest.approx(1200, abs=2)
    assert len(logs) == 1


@pytest.mark.parametrize("said", ["", "yesterday", "2026-01-01"])
def test_no_date_no_remedy(said: str) -> None:
    """Without a date that can be read nothing changes, and the caller learns that it is of no use to try again."""
    clock = ClockOffset()
    assert not clock.learn(said, "s3://b/k")
    assert clock.offset_s == 0
