"""The nodes that a command line names in place of a job's files."""

from __future__ import annotations

import typer

from feedd.channels.job import Cluster


def cluster_of(nodes: int | None, node_rank: int | None) -> Cluster:
    """Return the nodes that ``--nodes`` and ``--node-rank`` name; at least one of them is given.

    Raises:
        typer.BadParameter: only one of them is given, and the other does not follow.
    """
    if nodes is None or (node_rank is None and nodes > 1):
        raise typer.BadParameter("expected --nodes and --node-rank together, got one of them")
    return Cluster.numbered(nodes, node_rank or 0)
