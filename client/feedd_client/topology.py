"""The place of this process among all trainer processes: a pure function of the environment and a few files.

A node may have several daemons, its lanes. To the plan each lane is a node, with an equal part of the node's ranks. The
plan may have more or fewer lanes than the node has daemons. So a run goes on where there are other daemons: two daemons
serve two of four lanes each.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd_client.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAGEMAKER_FILE: Final = Path("/opt/ml/input/config/resourceconfig.json")
_HINT: Final = "pass topology=Topology(world_size=..., rank=..., ...)"
# (names of) world size, rank, local size, local rank
_MPI_FAMILIES: Final = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
)


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks and sizes of a trainer process, named as in torchrun. The default is a single process.

    Raises:
        TopologyError: the values contradict each other.
    """

    world_size: int = 1
    rank: int = 0
    local_world_size: int = 1
    local_rank: int = 0
    node_count: int = 1
    node_rank: int = 0

    def __post_init__(self) -> None:
        pairs = (
            ("rank", self.rank, "world_size", self.world_size),
            ("local_rank", self.local_rank, "local_world_size", self.local_world_size),
            ("node_rank", self.node_rank, "node_count", self.node_count),
        )
        for name, value, bound_name, bound in pairs:
            if not 0 <= value < bound:
                raise TopologyError(f"expected 0 <= {name} < {bound_name} ({bound}), got {value}", hint=_HINT)
        if self.local_world_size + self.node_count - 1 > self.world_size:
            raise TopologyError(
                f"expected at least {self.local_world_size + self.node_count - 1} ranks for {self.node_count} nodes,"
                f" one of them with {self.local_world_size}, got world_size {self.world_size}",
                hint=_HINT,
            )
        if self.node_count == 1 and (self.local_world_size, self.local_rank) != (self.world_size, self.rank):
            raise TopologyError(
                f"expected local rank and size to equal rank and size on one node, got {asdict(self)}", hint=_HINT
            )


def detect(env: Mapping[str, str], *, sagemaker_file: Path = SAGEMAKER_FILE) -> Topology:
    """Return the topology that the launcher's variables describe (torchrun, Slurm, MPI, SageMaker, JobSet).

    Without such variables, return a single process.

    Raises:
        TopologyError: the variables contradict each other, or some are missing.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        return _from_torchrun(env, sagemaker_file)
    if "SLURM_PROCID" in env and ("SLURM_STEP_ID" in env or "SLURM_STEPID" in env):
        return _from_slurm(env)
    for names in _MPI_FAMILIES:
        if names[0] in env and names[1] in env:
            return _from_mpi(env, names)
    hosts = _sagemaker_hosts(env, sagemaker_file)
    if hosts is not None:
        return _one_per_node(*hosts)
    if "JOB_COMPLETION_INDEX" in env:
        return _from_jobset(env)
    return Topology()


def from_ranks(rank: int, hosts: Sequence[int]) -> Topology:
    """Return the topology of ``rank``, where ``hosts[r]`` identifies the machine of rank ``r``."""
    nodes = list(dict.fromkeys(hosts))
    mine = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return Topology(len(hosts), rank, len(mine), mine.index(rank), len(nodes), nodes.index(hosts[rank]))


def folded(topology: Topology, replicas: int) -> Topology:
    """Return the topology with each group of ``replicas`` consecutive ranks counted as one rank.

    Raises:
        TopologyError: groups do not fill whole nodes, and nodes do not fill whole groups.
    """
    if replicas == 1:
        return topology
    world, local, nodes = topology.world_size, topology.local_world_size, topology.node_count
    rank = topology.rank // replicas
    if world % replicas == 0 and world == nodes * local:
        if local % replicas == 0:
            local_rank = topology.local_rank // replicas
            return Topology(world // replicas, rank, local // replicas, local_rank, nodes, topology.node_rank)
        if replicas % local == 0:
            span = replicas // local  # nodes of a group; all of them read the same batches
            return Topology(world // replicas, rank, 1, 0, nodes // span, topology.node_rank // span)
    raise TopologyError(
        f"expected groups of {replicas} ranks to fill whole nodes, or the reverse, got {world} ranks on {nodes} nodes,"
        f" {local} of them on this one",
        object="replicas",
        hint=_HINT,
    )


def planned_lanes(topology: Topology, daemon_count: int, partitions: int | None = None) -> int:
    """Return the number of lanes of a new plan: at most one for each daemon, each with the same number of ranks.

    The lanes of all nodes divide ``partitions``. If nodes differ in ranks, each has one lane.

    Args:
        topology: ranks and nodes.
        daemon_count: daemons of this node.
        partitions: parts of the dataset, if the user chose their number.
    """
    nodes, ranks = topology.node_count, topology.local_world_size
    if topology.world_size != nodes * ranks:
        return 1
    for lane_count in range(min(daemon_count, ranks), 1, -1):
        if ranks % lane_count == 0 and (partitions is None or partitions % (nodes * lane_count) == 0):
            return lane_count
    return 1


def in_lane(topology: Topology, lane_count: int) -> Topology:
    """Return the topology in which each lane counts as a node, as the daemon computes it.

    Lane ``l`` of node ``n`` is node ``l * node_count + n``: a node reads the same keys however many lanes it has.
    """
    if lane_count == 1:
        return topology
    size = topology.local_world_size // lane_count
    lane, local_rank = divmod(topology.local_rank, size)
    node_rank = lane * topology.node_count + topology.node_rank
    return Topology(topology.world_size, topology.rank, size, local_rank, topology.node_count * lane_count, node_rank)


def daemon_of(topology: Topology, lane_count: int, daemon_count: int, urls: Sequence[str]) -> int:
    """Return the number of the daemon that serves this rank.

    With fewer lanes than daemons, the URLs choose which daemons serve. So jobs with other data use other daemons, and
    jobs with the same data find it in one cache.

    Args:
        topology: ranks and nodes.
        lane_count: lanes of the plan.
        daemon_count: daemons of this node.
        urls: the dataset.
    """
    lane = topology.local_rank // (topology.local_world_size // lane_count)
    if lane_count >= daemon_count:
        return lane % daemon_count
    digest = hashlib.sha256("\n".join(urls).encode()).digest()
    offset = int.from_bytes(digest[:8], "big") % (daemon_count // lane_count)
    return lane * daemon_count // lane_count + offset


def local_env(env: Mapping[str, str], rank: int, world_size: int) -> Topology | None:
    """Return the launcher's topology if it fits a process group's rank and size, else None."""
    try:
        found = detect({**env, "RANK": str(rank), "WORLD_SIZE": str(world_size)} if "LOCAL_RANK" in env else env)
    except TopologyError:
        return None
    return found if (found.rank, found.world_size) == (rank, world_size) else None


def _from_torchrun(env: Mapping[str, str], sagemaker_file: Path) -> Topology:
    world_size, rank = _number(env, "WORLD_SIZE"), _number(env, "RANK")
    if world_size == 1:
        return Topology(1, rank)
    local_names = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in env]
    if local_names:
        hosts = _sagemaker_hosts(env, sagemaker_file)
        if hosts is not None and (len(hosts[0]), hosts[0].index(hosts[1])) == (world_size, rank):
            return _one_per_node(*hosts)
        raise TopologyError(
            f"expected {' and '.join(local_names)} to be set with RANK and WORLD_SIZE={world_size}, got nothing",
            hint=f"start the processes with torchrun, or {_HINT}",
        )
    local_size, local_rank = _number(env, "LOCAL_WORLD_SIZE"), _number(env, "LOCAL_RANK")
    if "GROUP_RANK" in env or "NODE_RANK" in env:
        node_rank = _number(env, "GROUP_RANK" if "GROUP_RANK" in env else "NODE_RANK")
        node_count = _number(env, "GROUP_WORLD_SIZE") if "GROUP_WORLD_SIZE" in env else world_size // local_size
        return Topology(world_size, rank, local_size, local_rank, node_count, node_rank)
    return _node_by_node(world_size, rank, local_size, local_rank)


def _from_slurm(env: Mapping[str, str]) -> Topology:
    def first(*names: str) -> str:
        for name in names:
            if name in env:
                return name
        raise TopologyError(f"expected one of {', '.join(names)} in a Slurm step, got none", hint=_HINT)

    world_size = _number(env, first("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"))
    node_count = _number(env, first("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"))
    node_rank = _number(env, "SLURM_NODEID")
    tasks = _slurm_counts(env[first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")])
    if len(tasks) != node_count or sum(tasks) != world_size or not 0 <= node_rank < node_count:
        raise TopologyError(
            f"expected tasks per node {tasks} to cover {node_count} nodes and {world_size} tasks,"
            f" got node {node_rank}, {len(tasks)} nodes and {sum(tasks)} tasks",
            hint=_HINT,
        )
    local = (tasks[node_rank], _number(env, "SLURM_LOCALID"))
    return Topology(world_size, _number(env, "SLURM_PROCID"), *local, node_count, node_rank)


def _slurm_counts(text: str) -> list[int]:
    """Expand Slurm's ``4(x2),2`` into one count per node."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise TopologyError(f"expected tasks per node like 4(x2),2, got {text!r}", hint=_HINT)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _from_mpi(env: Mapping[str, str], names: tuple[str, str, str, str]) -> Topology:
    world_size, rank = _number(env, names[0]), _number(env, names[1])
    if world_size == 1:
        return Topology(1, rank)
    return _node_by_node(world_size, rank, _number(env, names[2]), _number(env, names[3]))


def _from_jobset(env: Mapping[str, str]) -> Topology:
    index = _number(env, "JOB_COMPLETION_INDEX")
    for name in ("PET_NNODES", "NNODES", "NODE_COUNT"):
        if name in env:
            count = _number(env, name)
            return Topology(count, index, 1, 0, count, index)
    raise TopologyError(
        "expected NNODES or PET_NNODES to be set with JOB_COMPLETION_INDEX, got neither",
        hint=f"set NNODES in the pod template, or {_HINT}",
    )


def _sagemaker_hosts(env: Mapping[str, str], path: Path) -> tuple[list[str], str] | None:
    """Return (all hosts in order, this host) from the job's file or variables; None outside SageMaker."""
    try:
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
            hosts, current = config["hosts"], config["current_host"]
        elif "SM_HOSTS" in env and "SM_CURRENT_HOST" in env:
            hosts, current = json.loads(env["SM_HOSTS"]), env["SM_CURRENT_HOST"]
        else:
            return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TopologyError(f"expected hosts and current_host, got {error!r}", object=str(path), hint=_HINT) from None
    hosts = sorted(hosts, key=lambda host: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", host)])
    if current not in hosts:
        raise TopologyError(f"expected current host among {hosts}, got {current!r}", object=str(path), hint=_HINT)
    return hosts, current


def _one_per_node(hosts: list[str], current: str) -> Topology:
    index = hosts.index(current)
    return Topology(len(hosts), index, 1, 0, len(hosts), index)


def _node_by_node(world_size: int, rank: int, local_size: int, local_rank: int) -> Topology:
    """Return the topology for equally large nodes that are filled one after the other."""
    first = rank - local_rank
    if local_size < 1 or world_size % local_size or first % local_size:
        raise TopologyError(
            f"expected ranks placed node by node, {local_size} to each, got rank {rank} of {world_size}"
            f" as local rank {local_rank}",
            hint=_HINT,
        )
    return Topology(world_size, rank, local_size, local_rank, world_size // local_size, first // local_size)


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        value = int(env[name])
    except KeyError:
        raise TopologyError(f"expected {name} to be set, got nothing", object=name, hint=_HINT) from None
    except ValueError:
        raise TopologyError(f"expected a number, got {env[name]!r}", object=name, hint=_HINT) from None
    if value < 0:
        raise TopologyError(f"expected 0 or more, got {value}", object=name, hint=_HINT)
    return value
