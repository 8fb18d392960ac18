"""A node's lanes: which of its daemons serves a rank. Pure.

A node may have several daemons, its lanes. To the plan each lane is a node, with an equal part of the node's ranks. The
number of lanes in the plan may differ from the number of daemons: a run that was saved with four lanes goes on with
four, and two daemons serve two each.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from feedd_client.topology import Topology
from feedd_client.transport import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

_LANE_PORTS: Final = 100  # from the TCP port of one lane to that of the next


def planned_lanes(topology: Topology, daemon_count: int, partitions: int | None = None) -> int:
    """Return the lanes of a new plan: as many as there are daemons, or fewer, so that each has as many ranks.

    Nodes with different numbers of ranks, and partitions that the lanes would not divide, make fewer lanes, or one.

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


def lane_address(address: Address, daemon: int) -> Address:
    """Return the address of a node's daemon by its number; ``address`` is that of the first."""
    if daemon == 0:
        return address
    if address.uds_path is not None:
        return parse_address(f"unix://{address.uds_path}.lane{daemon}")
    head, _, port = address.text.rpartition(":")
    return parse_address(f"{head}:{int(port) + _LANE_PORTS * daemon}")
