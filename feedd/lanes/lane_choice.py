"""Which lanes of a node a job uses. The client decides the same (``feedd_client.topology``)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def serving_daemons(rank_count: int, daemon_count: int, urls: Sequence[str]) -> list[int]:
    """Return the daemon of each lane of a job's plan.

    The plan has as many lanes as the node has daemons, or fewer, so that each has as many ranks. With fewer, the URLs
    choose the daemons.

    Args:
        rank_count: ranks of the job on this node.
        daemon_count: daemons of this node.
        urls: the dataset, as the job names it.
    """
    lane_count = next(count for count in range(min(daemon_count, rank_count), 0, -1) if rank_count % count == 0)
    digest = hashlib.sha256("\n".join(urls).encode()).digest()
    offset = int.from_bytes(digest[:8], "big") % (daemon_count // lane_count)
    return [lane * daemon_count // lane_count + offset for lane in range(lane_count)]
