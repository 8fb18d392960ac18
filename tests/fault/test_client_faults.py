"""What the client makes of daemons that vanish, restart, refuse or break the contract."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import feedd_client as fc
from feedd_client._wire import feedd_pb2 as pb
from tests.budget import PATIENT_S
from tests.fakes.feed_client import BATCH_SIZE, Bench, ids
from tests.fakes.feed_script import Fault
from tests.fakes.forks import Script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    """Servers and datasets of this test."""
    with Bench(short_dir) as bench:
        yield bench


def _all_ids(steps: int) -> list[int]:
    return list(range(steps * BATCH_SIZE))


@pytest.mark.parametrize("kind", ["vanish", "eof", "error"])
def test_a_lost_stream_is_resumed_at_every_step(bench: Bench, kind: str) -> None:
    """A stream lost before any step, in any way, costs a reconnect and neither a sample nor a repetition."""
    draining = {"kind": "draining", "message": "expected a daemon that stays, got one that goes", "retryable": True}
    faults = tuple(Fault(step, kind, error=draining) for step in range(5))
    for one in (*((fault,) for fault in faults), faults):
        server = bench.server(steps=5, faults=one)
        dataset = bench.dataset(server)
        seen = [number for batch in dataset for number in ids(batch)]
        assert seen == _all_ids(5)
        assert dataset.stats()["reconnects"] == len(one)


def test_a_restarted_daemon_is_a_pause(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that is gone for a while in the middle of an epoch costs no sample. The log says how long it may be."""
    server = bench.server(steps=40, slot_count=2)
    dataset = bench.dataset(server, reconnect_timeout_s=90)
    batches = iter(dataset)
    seen = ids(next(batches))
    kept = next(batches)
    seen += ids(kept)
    server.stop()
    restarting = threading.Timer(0.3, server.start)
    restarting.start()
    for batch in batches:
        seen += ids(batch)
    restarting.join()
    assert seen == _all_ids(40)
    assert dataset.stats()["reconnects"] == 1
    assert server.starts[-1].next.step >= 2
    assert "It is tried again for up to 90 s" in caplog.text


def test_a_session_that_ends_before_its_stream_is_opened_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may sleep between its open and its stream for longer than the daemon keeps an unused session."""
    server = bench.server(steps=3)
    opened = server.Open

    def open_and_sleep(request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        granted = opened(request, context)
        if len(server.opens) == 1:
            server.Close(pb.CloseRequest(session_id=granted.session_id), context)
        return granted

    monkeypatch.setattr(server, "Open", open_and_sleep)
    server.restart()
    dataset = bench.dataset(server)
    assert [number for batch in dataset for number in ids(batch)] == _all_ids(3)
    assert (len(server.opens), dataset.stats()["reconnects"]) == (2, 1)


def test_a_daemon_restarted_between_epochs_is_not_noticed(bench: Bench) -> None:
    """A session kept from the last epoch that the daemon does not know any more is opened anew."""
    server = bench.server(steps=2)
    dataset = bench.dataset(server, reconnect_timeout_s=0)
    assert sum(1 for _ in dataset) == 2
    server.restart()
    assert sum(1 for _ in dataset) == 2
    assert len(server.opens) == 2


def test_a_daemon_that_stays_away_is_an_error_after_the_time_given(bench: Bench) -> None:
    """reconnect_timeout_s bounds the wait; the error says what is missing and where."""
    server = bench.server(steps=8, slot_count=1)
    batches = iter(bench.dataset(server, reconnect_timeout_s=0.5))
    next(batches)
    server.stop()
    began_s = time.monotonic()
    with pytest.raises(fc.DaemonUnreachable) as caught:
        list(batches)
    assert time.monotonic() - began_s < 10
    assert caught.value.object == server.address


@pytest.mark.slow  # waits for real time to pass
def test_a_batch_that_fails_again_and_again_ends_the_pass(bench: Bench) -> None:
    """A daemon that answers Open and loses the same stream every time is given up, not retried for minutes."""
    server = bench.server(steps=4, faults=(Fault(2, "eof", times=1000),))
    dataset = bench.dataset(server, reconnect_timeout_s=300.0)
    with pytest.raises(fc.DaemonUnreachable, match="stream that ended"):
        list(dataset)
    assert len(server.opens) < 10


@pytest.mark.parametrize("kind", ["error", "trailer"])
def test_errors_of_the_daemon_keep_their_words_and_get_their_class(bench: Bench, kind: str) -> None:
    """In-band and as a trailer, an error names object, hint and stage, and is the class its kind stands for."""
    classes = {
        "bad-sample": fc.BadSampleError,
        "bad-shard": fc.BadShardError,
        "not-found": fc.DatasetNotFound,
        "permission-denied": fc.AccessDenied,
        "object-changed": fc.DatasetChanged,
        "cache-too-small": fc.CacheError,
        "store-unavailable": fc.StoreError,
        "unsupported": fc.UnsupportedError,
        "of-the-future": fc.DaemonError,
    }
    for name, wanted in classes.items():
        said = {"kind": name, "message": "expected a, got b", "object": "s3://b/k", "hint": "do c", "stage": "decode"}
        server = bench.server(steps=3, faults=(Fault(1, kind, error=said),))
        with pytest.raises(wanted) as caught:
            list(bench.dataset(server))
        assert type(caught.value) is wanted
        assert str(caught.value) == "expected a, got b [s3://b/k] - do c"
        assert caught.value.stage == "decode"


def test_open_errors_are_raised_by_iter(bench: Bench) -> None:
    """What the daemon says at Open is raised where the loop begins, and the dataset can be tried again."""
    said = {"kind": "bad-recipe", "message": "expected a known codec, got 'imagf'", "object": "jpg"}
    server = bench.server(steps=2, open_errors=(said,))
    dataset = bench.dataset(server)
    with pytest.raises(fc.BadRecipeError, match="imagf"):
        iter(dataset)
    assert len(list(dataset)) == 2


def test_open_waits_for_a_daemon_that_is_busy_or_draining(bench: Bench) -> None:
    """Draining and exhausted daemons are asked again until open_timeout_s."""
    busy: tuple[dict[str, Any], ...] = ({"kind": "draining"}, {"kind": "resource-exhausted"})
    server = bench.server(steps=2, open_errors=busy)
    assert len(list(bench.dataset(server))) == 2
    stubborn = bench.server(steps=2, open_errors=busy * 1000)
    with pytest.raises((fc.Draining, fc.ResourceError)):
        iter(bench.dataset(stubborn, open_timeout_s=5.0))  # long enough for an answer on a busy machine


def test_open_outlives_the_gap_between_a_draining_daemon_and_its_successor(bench: Bench) -> None:
    """Who was told that the daemon is going away waits for the next one, also while nobody listens."""
    server = bench.server(steps=2, open_errors=({"kind": "draining"},) * 1000)

    def succeed() -> None:
        server.wait_for(lambda: server.refused_count > 1)  # the first was answered, not cut off
        server.stop()
        server.script = replace(server.script, open_errors=())
        time.sleep(0.3)
        server.start()

    succeeding = threading.Thread(target=succeed)
    succeeding.start()
    try:
        assert len(list(bench.dataset(server))) == 2
    finally:
        succeeding.join()


def test_open_says_that_the_daemon_was_going_away(bench: Bench) -> None:
    """Where no successor comes in time, the error has the reason that was told before."""
    server = bench.server(steps=2, open_errors=({"kind": "draining", "message": "going away"},) * 1000)

    def leave() -> None:
        server.wait_for(lambda: server.refused_count > 1)  # the first was answered, not cut off
        server.stop()

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(fc.DaemonUnreachable) as caught:
        iter(bench.dataset(server, open_timeout_s=3.0))
    leaving.join()
    server.start()
    assert isinstance(caught.value.__cause__, fc.Draining)


@pytest.mark.parametrize("kind", ["bad-seq", "wrong-epoch", "stale-generation", "bad-slot", "huge-inline"])
def test_a_broken_contract_is_an_error_not_data(short_dir: Path, kind: str) -> None:
    """Lost messages, wrong epochs, stale or impossible slots and absurd sizes are refused before use."""
    with Bench(short_dir) as bench:
        server = bench.server(steps=6, slot_count=2, faults=(Fault(3, kind),))
        batches = iter(bench.dataset(server))
        seen = [number for _ in range(3) for number in ids(next(batches))]
        assert seen == _all_ids(3)
        with pytest.raises(fc.ProtocolError):
            next(batches)
        server.violations.clear()


@pytest.mark.parametrize("theirs", [(2, 0), (1, 2)])
def test_another_protocol_version_is_named(bench: Bench, theirs: tuple[int, int]) -> None:
    """A daemon that is further than one minor version apart is refused at open; its session is closed."""
    server = bench.server(major=theirs[0], minor=theirs[1])
    with pytest.raises(fc.DaemonVersionError, match=rf"protocol 1\.0.* got {theirs[0]}\.{theirs[1]} "):
        iter(bench.dataset(server))
    assert not server.sessions


def test_a_daemon_one_minor_version_apart_serves(bench: Bench) -> None:
    """That is the rule of the protocol, in both directions."""
    assert len(list(bench.dataset(bench.server(steps=2, minor=1)))) == 2


@pytest.mark.parametrize("address", ["unix:///nonexistent/feedd.sock", "127.0.0.1:1"])
def test_an_absent_daemon_is_said_at_once(bench: Bench, address: str) -> None:
    """With an explicit address where nobody listens, iterating fails quickly and says what to do."""
    began_s = time.monotonic()
    with pytest.raises(fc.DaemonUnreachable) as caught:
        iter(bench.dataset(address, open_timeout_s=2 * PATIENT_S))
    assert time.monotonic() - began_s < PATIENT_S
    assert caught.value.object == address
    assert "feedd serve" in caught.value.hint


def test_a_refused_arena_falls_back_to_inline(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A socket directory that is not visible here costs speed, not the run, and is said once."""
    server = bench.server(steps=3)
    server.arena_at = "/nonexistent/feedd.sock.arena"
    dataset = bench.dataset(server)
    assert len(list(dataset)) == 3
    assert dataset.stats()["transport"] == "inline"
    assert "inline" in caplog.text


def test_a_client_that_goes_away_ends_its_lifeline(bench: Bench) -> None:
    """Once dataset and views are gone, the arena's connection ends, which is what frees the slots."""
    server = bench.server(steps=8)
    dataset = bench.dataset(server)
    for batch in dataset:
        image = batch["img"]
        break
    del batch
    dataset.close()
    assert server.lifelines_ended == 0
    assert image.sum() >= 0
    del image
    server.wait_for(lambda: server.lifelines_ended == 1)


_FORKS_AND_HOLDS = """
import os, sys, time
from feedd_client import FeedDataset
batches = iter(FeedDataset("s3://b/", batch_size=4, address=sys.argv[1]))
held = next(batches)
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_child_does_not_hold_its_parents_lifeline(forks: None, bench: Bench, tmp_path: Path) -> None:
    """A trainer that is killed gives its slots back although a process that it has forked lives on."""
    server = bench.server(steps=8)
    with Script(_FORKS_AND_HOLDS, [server.address], tmp_path / "trainer.log") as trainer:
        child = psutil.Process(int(trainer.stdout.readline()))
        trainer.kill()
    try:
        server.wait_for(lambda: server.lifelines_ended == 1)
        assert child.is_running()
    finally:
        child.kill()
