"""What a watch on a waiting trainer counts as silence, look by look."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from feedd_client import stall
from feedd_client.stall import StallWatch, heartbeat_s
from feedd_client.transport import parse_address

if TYPE_CHECKING:
    from feedd_client.session import Stream

ADDRESS = parse_address("127.0.0.1:7070")


class _Stream(SimpleNamespace):
    """As much of a stream as the watch asks."""

    lost: Exception | None

    def __init__(self) -> None:
        super().__init__(address=ADDRESS, message_count=0, waiting_for="", beats=True, awaits_batch=True, lost=None)

    def lose(self, error: Exception) -> None:
        """Remember why."""
        self.lost = error


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> _Stream:
    """A stream of a daemon that answers no health check."""
    monkeypatch.setattr(stall, "answers", lambda *_: False)
    return _Stream()


def _watch(stream: _Stream) -> StallWatch:
    watch = StallWatch(60.0)
    watch._started = True  # each look is the test's
    watch.wait(cast("Stream", stream))
    return watch


def test_silence_adds_up_and_any_message_ends_it(stream: _Stream, caplog: pytest.LogCaptureFixture) -> None:
    """Only looks between which no message came count; together they reach the limit, and the stream is given up."""
    watch = _watch(stream)
    now_s = watch._wait.began_s if watch._wait else 0.0
    for look in range(70):
        stream.message_count = min(look, 9)  # the tenth and all later looks find nothing new
        watch._look(now_s + look, 1.0)
        assert (stream.lost is None) == (look < 69), look
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "waiting for the daemon at 127.0.0.1:7070 for 29 s: no heartbeat" in caplog.messages[0]
    assert "no message from the daemon at 127.0.0.1:7070 for 60 s: it answers no health check" in caplog.messages[1]


def test_time_in_which_this_process_did_not_run_is_not_silence(stream: _Stream) -> None:
    """A trainer that was stopped for an hour finds the daemon's messages waiting, and gives nothing up."""
    watch = _watch(stream)
    now_s = watch._wait.began_s if watch._wait else 0.0
    watch._look(now_s, 1.0)
    watch._look(now_s + 3600, 3600.0)
    assert stream.lost is None


def test_nobody_is_blamed_for_a_batch_that_was_not_asked_for(stream: _Stream, caplog: pytest.LogCaptureFixture) -> None:
    """Without a batch on its way, because the trainer holds them all, nothing counts and nothing is said."""
    stream.awaits_batch = False
    watch = _watch(stream)
    now_s = watch._wait.began_s if watch._wait else 0.0
    for look in range(200):
        watch._look(now_s + look, 1.0)
    assert stream.lost is None
    assert not caplog.messages


def test_heartbeats_fit_between_notices() -> None:
    """A daemon at work is heard before its silence is worth a line: 15 s by default, less for shorter limits."""
    assert heartbeat_s(120.0) == 15.0
    assert heartbeat_s(8.0) == 2.0
