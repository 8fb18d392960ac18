"""Topology: what each launcher's variables mean, and refusal of what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd_client import FeedDataset, Topology, TopologyError
from feedd_client.topology import detect, folded, from_ranks, local_env

NOWHERE = Path("/nonexistent/resourceconfig.json")
_MPI = ("WORLD_SIZE", "WORLD_RANK", "WORLD_LOCAL_SIZE", "WORLD_LOCAL_RANK")


def _env(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _slurm(rank: int, node: int, local: int, tasks: str = "4(x2),2", size: int = 10) -> dict[str, str]:
    return _env(
        SLURM_PROCID=rank,
        SLURM_STEP_ID=0,
        SLURM_STEP_NUM_TASKS=size,
        SLURM_STEP_NUM_NODES=3,
        SLURM_NODEID=node,
        SLURM_LOCALID=local,
        SLURM_STEP_TASKS_PER_NODE=tasks,
    )


def _torchrun(rank: int, size: int, local: int, local_size: int, **more: object) -> dict[str, str]:
    return _env(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=local, LOCAL_WORLD_SIZE=local_size, **more)


FOUND: list[tuple[str, dict[str, str], Topology]] = [
    ("nothing", {}, Topology()),
    ("one process", _env(RANK=0, WORLD_SIZE=1), Topology()),
    (
        "torchrun",
        _torchrun(5, 8, 1, 4, GROUP_RANK=1, GROUP_WORLD_SIZE=2),
        Topology(8, 5, 4, 1, 2, 1),
    ),
    ("torchrun, nodes out of order", _torchrun(5, 8, 1, 4, GROUP_RANK=0), Topology(8, 5, 4, 1, 2, 0)),
    ("lightning", _torchrun(3, 4, 1, 2, NODE_RANK=1), Topology(4, 3, 2, 1, 2, 1)),
    ("no node rank", _torchrun(3, 4, 1, 2), Topology(4, 3, 2, 1, 2, 1)),
    ("slurm", _slurm(9, 2, 1), Topology(10, 9, 2, 1, 3, 2)),
    ("slurm, uneven first node", _slurm(3, 0, 3), Topology(10, 3, 4, 3, 3, 0)),
    ("sbatch without srun", _env(SLURM_PROCID=0, SLURM_NTASKS=8), Topology()),
    (
        "open mpi",
        _env(**dict(zip((f"OMPI_COMM_{name}" for name in _MPI), (8, 6, 4, 2), strict=True))),
        Topology(8, 6, 4, 2, 2, 1),
    ),
    ("mpich", _env(PMI_SIZE=4, PMI_RANK=1, MPI_LOCALNRANKS=2, MPI_LOCALRANKID=1), Topology(4, 1, 2, 1, 2, 0)),
    ("sagemaker", _env(SM_HOSTS='["algo-10","algo-2","algo-1"]', SM_CURRENT_HOST="algo-2"), Topology(3, 1, 1, 0, 3, 1)),
    ("jobset", _env(JOB_COMPLETION_INDEX=2, NNODES=4), Topology(4, 2, 1, 0, 4, 2)),
    (
        "torchrun inside a jobset",
        _torchrun(1, 2, 0, 1, GROUP_RANK=1, JOB_COMPLETION_INDEX=1),
        Topology(2, 1, 1, 0, 2, 1),
    ),
]

REFUSED: list[tuple[str, dict[str, str], str]] = [
    ("rank outside", _torchrun(8, 8, 0, 4, GROUP_RANK=0), "rank"),
    ("no local rank", _env(RANK=1, WORLD_SIZE=4), "LOCAL_RANK"),
    ("not a number", _torchrun(1, 2, 0, 1) | {"RANK": "one"}, "one"),
    ("local size does not divide", _torchrun(1, 4, 1, 3), "node by node"),
    ("local rank on another node", _torchrun(5, 8, 2, 4), "node by node"),
    ("more nodes than ranks allow", _torchrun(1, 4, 1, 2, GROUP_RANK=1, GROUP_WORLD_SIZE=4), "at least 5"),
    ("slurm counts do not add up", _slurm(9, 2, 1, tasks="4(x2)"), "cover"),
    ("slurm garbage", _slurm(9, 2, 1, tasks="4x2"), "4x2"),
    ("jobset without count", _env(JOB_COMPLETION_INDEX=2), "NNODES"),
    ("sagemaker, not among hosts", _env(SM_HOSTS='["a"]', SM_CURRENT_HOST="b"), "'b'"),
]


@pytest.mark.parametrize(("name", "env", "wanted"), FOUND, ids=[name for name, _, _ in FOUND])
def test_launchers_are_understood(name: str, env: dict[str, str], wanted: Topology) -> None:
    """Each launcher's variables give world, local and node positions."""
    assert detect(env, sagemaker_file=NOWHERE) == wanted


@pytest.mark.parametrize(("name", "env", "word"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_contradictions_are_refused(name: str, env: dict[str, str], word: str) -> None:
    """Values that contradict each other or do not say enough are an error that shows them and names topology=."""
    with pytest.raises(TopologyError, match=word) as caught:
        detect(env, sagemaker_file=NOWHERE)
    assert "topology=" in caught.value.hint


def test_the_sagemaker_file_counts_more_than_its_variables(tmp_path: Path) -> None:
    """resourceconfig.json gives the hosts in numeric order, and is said when it is damaged."""
    path = tmp_path / "resourceconfig.json"
    path.write_text(json.dumps({"current_host": "algo-10", "hosts": ["algo-10", "algo-9"]}))
    assert detect({}, sagemaker_file=path) == Topology(2, 1, 1, 0, 2, 1)
    path.write_text("{}")
    with pytest.raises(TopologyError, match="hosts"):
        detect({}, sagemaker_file=path)


def test_ranks_can_be_told_from_their_hosts() -> None:
    """Where only hosts are known, nodes are numbered by their first rank, whatever the placement."""
    hosts = [7, 9, 7, 9, 7]
    assert [from_ranks(rank, hosts) for rank in (0, 1, 4)] == [
        Topology(5, 0, 3, 0, 2, 0),
        Topology(5, 1, 2, 0, 2, 1),
        Topology(5, 4, 3, 2, 2, 0),
    ]


def test_a_process_group_counts_more_than_the_environment() -> None:
    """Launcher variables are believed only where they agree with the process group's rank and size."""
    env = _torchrun(0, 8, 1, 4, GROUP_RANK=1)
    assert local_env(env, 5, 8) == Topology(8, 5, 4, 1, 2, 1)
    assert local_env({}, 1, 2) is None
    assert local_env(_slurm(9, 2, 1), 3, 4) is None


@pytest.mark.parametrize("values", [{"world_size": 2}, {"rank": 1}, {"world_size": 2, "node_count": 3}])
def test_a_topology_must_make_sense(values: dict[str, Any]) -> None:
    """Impossible topologies cannot be made."""
    with pytest.raises(TopologyError):
        Topology(**values)


@given(nodes=st.integers(1, 6), ranks=st.integers(1, 8), replicas=st.integers(1, 24))
def test_groups_of_replicas_count_as_one_rank(nodes: int, ranks: int, replicas: int) -> None:
    """Consecutive ranks of a group stand at one place; the groups are the ranks of a smaller topology."""
    world = nodes * ranks
    everyone = [Topology(world, rank, ranks, rank % ranks, nodes, rank // ranks) for rank in range(world)]
    fits = world % replicas == 0 and (ranks % replicas == 0 or replicas % ranks == 0)
    if not fits:
        with pytest.raises(TopologyError, match="groups of"):
            folded(everyone[0], replicas)
        return
    places = [folded(topology, replicas) for topology in everyone]
    assert [place.rank for place in places] == [rank // replicas for rank in range(world)]
    distinct = list(dict.fromkeys(places))
    assert len(distinct) == world // replicas == distinct[0].world_size
    local = distinct[0].local_world_size
    assert [(one.node_rank, one.local_rank) for one in distinct] == [
        divmod(rank, local) for rank in range(len(distinct))
    ]


def test_uneven_nodes_have_no_groups() -> None:
    """Groups need the same number of ranks on all nodes."""
    with pytest.raises(TopologyError, match="groups of 2"):
        folded(Topology(6, 0, 4, 0, 2, 0), 2)


@pytest.mark.parametrize(("share", "told"), [(None, True), ("a", False)])
def test_replicas_that_decode_the_same_are_told(
    caplog: pytest.LogCaptureFixture, share: str | None, told: bool
) -> None:
    """Ranks of a group decode the same batches each by itself, unless they share: whoever asks for that is told."""
    FeedDataset("s3://b/", batch_size=2, replicas=2, share=share)
    assert any("share=" in record.getMessage() for record in caplog.records) == told
