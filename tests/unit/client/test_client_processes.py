"""Forks, workers, pickling and ranks: real processes against a server in a process of its own."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import BadOptionError, FeedDataset, Topology
from tests.budget import PATIENT_S
from tests.fakes.feed_client import ids
from tests.fakes.feed_process import FeedProcess, rank_environment, run_probe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feed_client import Bench


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_forks_and_workers_see_every_sample_once(short_dir: Path) -> None:
    """A fork in mid-pass, DataLoader workers over several epochs and a resumed StatefulDataLoader lose nothing."""
    with FeedProcess(short_dir / "feed.sock", steps=7, last_rows=2) as server:
        found = run_probe("tests.unit.client.fork_probe", server.address)
    epoch = list(range(26))
    assert found["start"] == multiprocessing.get_start_method(), "workers started otherwise than a user's"
    assert found["child"] == {"refused": True, "ids": epoch}
    assert found["parent"] == epoch
    for workers in (2, 3):
        first, second = found[f"workers_{workers}"]
        assert sorted(first) == epoch
        assert sorted(second) == [number + 100_000_000 for number in epoch]
    assert "num_workers=0" in found["join_in_worker"]
    assert sorted(found["stateful"]) == epoch


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("what", "rounds"),
    [
        ((), 12),
        (("passes",), 8),
        pytest.param((), 100, marks=pytest.mark.nightly),
        pytest.param(("passes",), 40, marks=pytest.mark.nightly),
    ],
)
def test_forks_right_after_grpc_was_used(short_dir: Path, what: tuple[str, ...], rounds: int) -> None:
    """Neither the process that forks nor its children hang in a gRPC that is shutting down, or ending a stream."""
    with FeedProcess(short_dir / "feed.sock", steps=1) as server:
        found = run_probe("tests.unit.client.fork_storm", server.address, str(rounds), *what, forked=False)
    assert found["well"] == rounds * 3


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_ranks_of_unequal_length_end_together(short_dir: Path) -> None:
    """With join both ranks take the steps of the shorter one, epoch after epoch, and differing data is an error."""
    found: dict[int, dict[str, Any]] = {}

    def rank(number: int, *addresses: str) -> None:
        found[number] = run_probe(
            "tests.unit.client.join_probe",
            *addresses,
            env=rank_environment(number, 2) | {"MEETING": str(short_dir / "meeting")},
        )

    uneven = {"steps": {0: 9, 1: 6}, "last_rows": 2}
    with (
        FeedProcess(short_dir / "a.sock", **uneven) as plain,
        FeedProcess(short_dir / "b.sock", **uneven, tell_steps=True) as told,
        FeedProcess(short_dir / "c.sock", **uneven, fingerprint_per_rank=True) as changed,
    ):
        addresses = (plain.address, told.address, changed.address)
        threads = [threading.Thread(target=rank, args=(number, *addresses)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENT_S)
    for number in (0, 1):
        seen = found[number]
        assert seen["join"] == seen["told"] == [6, 6]
        assert seen["join_state"] == 2
        assert seen["after_break"] == 6
        assert seen["samples"] == 5 * 64 + 2
        assert "dataset fingerprint" in seen["disagree"]
        assert seen["topology"] == [str(number), 2]
    assert found[0]["join_left"] >= 2 * 2  # it had at least the steps settled ahead
    assert 3 <= found[0]["told_left"] <= 6  # exact in the first pass, whose steps were told at open
    assert found[1]["join_left"] == 0


def test_a_dataset_travels_by_pickle_at_any_time(bench: Bench) -> None:
    """Pickling, as spawned workers do, carries arguments, epoch and position, and nothing that is open."""
    server = bench.server(steps=4)
    dataset = bench.dataset(server)
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    copy: FeedDataset = pickle.loads(pickle.dumps(dataset))
    assert copy.state_dict() == state
    assert [ids(batch)[0] for batch in copy] == [0, 4, 8, 12]
    copy.close()
    assert len(list(batches)) == 3


def test_uneven_ranks_need_a_way_to_agree(bench: Bench) -> None:
    """Several ranks without torch.distributed can have what the daemon knows to count, and uneven='allow'."""
    server = bench.server(steps=2)
    two = Topology(2, 0, 2, 0, 1, 0)
    with pytest.raises(BadOptionError, match=r"torch\.distributed"):
        iter(bench.dataset(server, topology=two))
    with pytest.raises(BadOptionError, match=r"torch\.distributed"):
        iter(bench.dataset(server, topology=two, uneven="join"))
    counting = bench.server(steps=2, uneven="drop")
    assert len(list(bench.dataset(counting, topology=two))) == 2
    for policy in ("drop", "pad", "repeat"):
        assert len(list(bench.dataset(bench.server(steps=2, uneven=policy), topology=two, uneven=policy))) == 2
    assert len(list(bench.dataset(server, topology=two, uneven="allow"))) == 2
