"""The machine's cores by memory node, and how many lanes its daemon gets."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CORES_PER_LANE = 16  # a daemon's event loop and transfer threads feed about so many decode workers
_SYSTEM = Path("/sys/devices/system")


def cores_by_memory_node(cores: frozenset[int], system: Path = _SYSTEM) -> list[list[int]]:
    """Return ``cores`` grouped by memory node, hardware threads of one core side by side.

    Args:
        cores: cores to group.
        system: the kernel's folder of devices.

    Returns:
        One list for each memory node that has some of the cores. Without memory nodes, one list of all.
    """
    groups: list[list[int]] = []
    left = set(cores)
    for folder in sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        mine = left & parse_cores(_text(folder / "cpulist"))
        left -= mine
        if mine:
            groups.append(_by_core(mine, system))
    if left:
        groups.append(_by_core(left, system))
    return groups


def split_cores(groups: Sequence[Sequence[int]], lane_count: int) -> list[frozenset[int]]:
    """Return the cores of each lane: consecutive cores in the order of ``groups``, as equal as possible.

    With more lanes than cores, lanes share cores.
    """
    cores = [core for group in groups for core in group]
    if lane_count >= len(cores):
        return [frozenset({cores[lane % len(cores)]}) for lane in range(lane_count)]
    bounds = [len(cores) * lane // lane_count for lane in range(lane_count + 1)]
    return [frozenset(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def lanes_for(groups: Sequence[Sequence[int]], gpu_count: int, core_count: int) -> int:
    """Return the number of lanes for a machine: at least 16 cores for each.

    The GPUs are a multiple of the lanes, so that each lane has as many ranks. No lane's cores are on two memory nodes
    if another number avoids it.

    Args:
        groups: cores by memory node.
        gpu_count: GPUs of the machine; 0: none.
        core_count: cores whose time this process may use: all of ``groups``, or fewer by a control group's limit.
    """
    for lane_count in range(core_count // CORES_PER_LANE, 1, -1):
        whole_nodes = lane_count % len(groups) == 0 or len(groups) % lane_count == 0
        if whole_nodes and gpu_count % lane_count == 0:
            return lane_count
    return 1


def auto_lanes(gpu_count: int, core_count: int) -> int:
    """Return the number of lanes for this machine; arguments as in ``lanes_for``."""
    return lanes_for(cores_by_memory_node(frozenset(os.sched_getaffinity(0))), gpu_count, core_count)


def parse_cores(text: str) -> frozenset[int]:
    """Return the cores of a text such as ``0-3,8``, the kernel's notation for sets of cores.

    Raises:
        ValueError: the text is not of that form.
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,5})(?:\s*-\s*(\d{1,5}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"expected cores like 0-3,8, got {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


def _by_core(cores: set[int], system: Path) -> list[int]:
    def first_sibling(core: int) -> int:
        siblings = parse_cores(_text(system / f"cpu/cpu{core}/topology/thread_siblings_list"))
        return min(siblings, default=core)

    return sorted(cores, key=lambda core: (first_sibling(core), core))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
