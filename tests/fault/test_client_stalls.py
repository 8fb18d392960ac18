"""What the client makes of a daemon that neither answers nor ends: it says so, waits, and goes on exactly."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fakes.feed_client import BATCH_SIZE, Bench, ids
from tests.fakes.feed_process import FeedProcess
from tests.fakes.feed_script import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # waits for real time to pass
STALL_S = 1.2


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    """Servers and datasets of this test."""
    with Bench(short_dir) as bench:
        yield bench


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "feedd_client")


def _said(caplog: pytest.LogCaptureFixture, part: str) -> int:
    return sum(part in message for message in caplog.messages)


def test_a_stream_that_falls_silent_is_given_up(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon of today that answers a health check and sends no heartbeat on a stream is asked anew, exactly."""
    server = bench.server(steps=6, faults=(Fault(3, "hang", delay_s=60),))
    dataset = bench.dataset(server, stall_timeout_s=STALL_S)
    assert [number for batch in dataset for number in ids(batch)] == list(range(6 * BATCH_SIZE))
    assert dataset.stats()["reconnects"] == 1
    assert server.starts[0].heartbeat_ms == STALL_S * 1000 / 4
    assert _said(caplog, f"waiting for the daemon at {server.address} for ") == 1
    assert _said(caplog, " s: no heartbeat") == 1
    assert _said(caplog, "it answers a health check, but this stream is silent") >= 1


def test_a_daemon_at_work_is_waited_for(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """While heartbeats come nothing is given up, and the trainer says once what the daemon waits for."""
    server = bench.server(steps=4, faults=(Fault(2, "hang", delay_s=3 * STALL_S, waiting_for="fetching"),))
    dataset = bench.dataset(server, stall_timeout_s=STALL_S)
    assert [number for batch in dataset for number in ids(batch)] == list(range(4 * BATCH_SIZE))
    assert dataset.stats()["reconnects"] == 0
    assert _said(caplog, "it is fetching data") == _said(caplog, "continues after") == 1
    # A heartbeat may be late on a busy machine, which is rightly said, once.
    assert _said(caplog, "no heartbeat") == len(caplog.messages) - 2 <= 1


def test_a_trainer_that_holds_everything_blames_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged and nothing reconnected while the trainer itself is slow."""
    server = bench.server(steps=2, slot_count=1)
    dataset = bench.dataset(server, stall_timeout_s=2.0)
    for batch in dataset:
        assert len(ids(batch)) == BATCH_SIZE
        threading.Event().wait(3.0)
    assert dataset.stats()["reconnects"] == 0
    assert not caplog.messages


@pytest.mark.usefixtures("forks")
def test_a_stopped_daemon_is_given_up_and_taken_up_again(
    bench: Bench, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon process that was stopped answers nothing: the client says so, tries again, and goes on at its step."""
    with FeedProcess(short_dir / "stopped.sock", steps=12, slot_count=2) as process:
        dataset = bench.dataset(process.address, stall_timeout_s=STALL_S, reconnect_timeout_s=60.0)
        batches = iter(dataset)
        seen = ids(next(batches))
        os.kill(process.pid, signal.SIGSTOP)
        going_on = threading.Timer(STALL_S + 7, os.kill, (process.pid, signal.SIGCONT))
        going_on.start()
        for batch in batches:
            seen += ids(batch)
        going_on.join()
        assert seen == list(range(12 * BATCH_SIZE))
        assert dataset.stats()["reconnects"] >= 1
        assert _said(caplog, "no heartbeat") == 1
        assert _said(caplog, "it answers no health check either") >= 1
        dataset.close()
