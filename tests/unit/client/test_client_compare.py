"""Ranks without a process group compare what they read through torchrun's store, or say that they cannot."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from feedd_client import RanksDisagree, Topology, TopologyError, agreement, passes
from feedd_client.agreement import compare_in_store
from tests.budget import PATIENT_S, later
from tests.fakes.feed_process import FeedProcess, environment, rank_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.feed_client import Bench

A, B = b"a" * 16, b"b" * 16


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of a store as torchrun's agent serves it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # torch has no stubs
    yield store.port
    del store


@pytest.fixture
def _first_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has logged nothing about ranks yet."""
    monkeypatch.setattr(passes, "_warned", bytearray(1))


def _env(port: int, rank: int, run: str, **more: str) -> dict[str, str]:
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": "3",
    } | more


def test_the_second_rank_sees_that_the_first_reads_other_objects(port: int) -> None:
    """Each rank compares with the first that came, whichever that is, and waits for none."""
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        run = f"order-{order}"
        assert compare_in_store(_env(port, order[0], run), 3, "x", A) == ""
        assert compare_in_store(_env(port, order[1], run), 3, "x", A) == ""
        with pytest.raises(RanksDisagree, match=f"{A.hex()} on rank {order[0]} and {B.hex()} on rank {order[2]}"):
            compare_in_store(_env(port, order[2], run), 3, "x", B)


def test_only_ranks_of_one_attempt_and_one_dataset_compare(port: int) -> None:
    """Another job, a restarted job, another dataset, and the second reading of one rank are compared by themselves."""
    assert compare_in_store(_env(port, 0, "own"), 3, "x", A) == ""
    assert compare_in_store(_env(port, 1, "another"), 3, "x", B) == ""
    assert compare_in_store(_env(port, 1, "own", TORCHELASTIC_RESTART_COUNT="1"), 3, "x", B) == ""
    assert compare_in_store(_env(port, 1, "own"), 3, "y", B) == ""
    assert compare_in_store(_env(port, 0, "own"), 3, "x", B) == ""
    with pytest.raises(RanksDisagree):
        compare_in_store(_env(port, 1, "own"), 3, "x", B)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "not available"),
        ({"MASTER_PORT": "none"}, "invalid"),
        ({"MASTER_PORT": ""}, "invalid"),
        ({"WORLD_SIZE": "6"}, "6 processes, but 3"),
    ],
)
def test_a_store_that_is_not_for_all_ranks_is_left_alone(port: int, change: dict[str, str], why: str) -> None:
    """Without torchrun's agent the port belongs to a later init_process_group: no connection is made, none listens."""
    assert why in compare_in_store(_env(port, 0, "left", **change), 3, "x", A)


@pytest.mark.parametrize("listens", [True, False])
def test_a_store_that_does_not_answer_costs_a_bounded_wait(monkeypatch: pytest.MonkeyPatch, *, listens: bool) -> None:
    """A port that is closed, and one whose process says nothing, end as a reason, not as an error or a hang."""
    monkeypatch.setattr(agreement, "STORE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        assert "did not answer" in compare_in_store(_env(port, 0, "silent"), 3, "x", A)


@pytest.mark.usefixtures("_first_warning")
def test_ranks_that_cannot_compare_say_so_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """One warning in each process names what helps, and stats() shows it; a single rank has nothing to compare."""
    where = Topology(world_size=2, rank=1, local_world_size=1, local_rank=0, node_count=2, node_rank=1)
    with caplog.at_level(logging.WARNING, "feedd_client"):
        for topology, compared in ((Topology(), None), (where, False), (where, False)):
            dataset = bench.dataset(bench.server(steps=4), topology=topology, uneven="allow")
            assert dataset.stats()["ranks_compared"] is None
            list(dataset)
            assert dataset.stats()["ranks_compared"] is compared
    said = [one.getMessage() for one in caplog.records if "cannot compare" in one.getMessage()]
    assert len(said) == 1
    assert "init_process_group" in said[0]
    assert "frozen+" in said[0]


@pytest.mark.usefixtures("_first_warning")
@pytest.mark.parametrize(
    ("change", "explicit"),
    [({}, False), ({"MASTER_ADDR": "node-0"}, False), ({"GROUP_WORLD_SIZE": "1"}, False), ({}, True)],
)
def test_torchruns_variables_without_its_address_are_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], *, explicit: bool
) -> None:
    """Nodes that nothing can connect would train on different listings; a topology that the user passes is believed."""
    nodes = change.get("GROUP_WORLD_SIZE", "2")
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1"}
    if nodes == "1":
        env |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for name, value in ({"GROUP_WORLD_SIZE": nodes} | env | change).items():
        monkeypatch.setenv(name, value)
    where = {"topology": Topology(2, 1, 1, 0, 2, 1)} if explicit else {"topology": None}
    dataset = bench.dataset(bench.server(steps=4), uneven="allow", **where)
    if change or explicit:
        assert len(list(dataset)) == 4
    else:
        with pytest.raises(TopologyError, match="expected MASTER_ADDR"):
            list(dataset)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["torchrun", later("torchrun with a fixed port"), "none"])
def test_ranks_under_torchrun_and_without(short_dir: Path, launcher: str) -> None:
    """With an agent's store differing ranks get an error, and workers in any case if the parent has a group.

    Without both, training goes on after one warning of each rank, also with workers and several epochs. In all cases
    the port of a later process group stays free, and a rank that reads alone waits for none.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]
    launchers: dict[str, list[tuple[list[str], dict[str, str]]]] = {
        "torchrun": [([*launch, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], {})],
        "torchrun with a fixed port": [([*launch, "--master-port", master["MASTER_PORT"]], {})],
        "none": [([sys.executable], rank_environment(rank, 2) | master) for rank in (0, 1)],
    }
    with (
        FeedProcess(short_dir / "a.sock", steps=4) as plain,
        FeedProcess(short_dir / "b.sock", steps=4, fingerprint_per_rank=True) as changed,
    ):
        probe = ["-m", "tests.unit.client.compare_probe", str(short_dir), plain.address, changed.address]
        ranks = [
            subprocess.Popen([*command, *probe], env=environment() | env, stderr=subprocess.PIPE, text=True)
            for command, env in launchers[launcher]
        ]
        said = [rank.communicate(timeout=PATIENT_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    found = [json.loads((short_dir / str(rank)).read_text()) for rank in (0, 1)]
    agent = launcher != "none"
    for name in ("differ", "fork", "spawn"):
        errors = [one[name] for one in found if isinstance(one.get(name), str)]
        assert len(errors) == (1 if agent or name != "differ" else 0), found
        assert all("expected the same dataset fingerprint on all ranks" in error for error in errors)
    for one in found:
        assert one["same"] is agent
        assert one["same_steps"] == one["group_steps"] == 4
        assert one["group"] is True
        assert one["epochs"] == [4, 4, 4]
    assert found[0]["alone"] is agent
    assert "".join(said).count("ranks cannot compare") == (0 if agent else 2)
