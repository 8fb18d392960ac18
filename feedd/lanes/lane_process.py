"""Makes this process a lane: it runs on the lane's cores, and ends with its supervisor."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from feedd.errors import Internal
from feedd.flow.parent_death import end_with
from feedd.lanes.lane import lane_config, lane_cores

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.config import Effective
    from feedd.lanes.lane import Lane

SUPERVISOR_VARIABLE = "FEEDD_LANE_SUPERVISOR"


def status_socket(folder: Path, lane: Lane) -> Path:
    """Return where a lane serves its status pages to its supervisor."""
    return folder / f"{lane.index}.status"


def become_lane(effective: Effective, lane: Lane, folder: Path) -> Effective:
    """Pin this process to the lane's cores, and return the lane's configuration.

    Threads and worker processes that start later inherit the cores. The kernel takes memory from their memory node.

    Args:
        effective: the node's configuration. Its defaults were computed from all cores of the node.
        lane: which lane.
        folder: the supervisor's folder for sockets.

    Raises:
        Internal: the supervisor has ended meanwhile.
    """
    if not end_with(int(os.environ.get(SUPERVISOR_VARIABLE, "-1")), signal.SIGTERM):
        raise Internal("expected a supervisor above this lane, got none", stage="lanes")
    config = lane_config(effective.config, lane)
    os.sched_setaffinity(0, lane_cores(frozenset(os.sched_getaffinity(0)), lane))
    return replace(effective, config=config.model_copy(update={"status": f"unix://{status_socket(folder, lane)}"}))
