"""Moves an arena to the memory node of the GPU that reads it, on machines with several nodes.

The daemon allocates an arena without knowing who reads it. A copy from the memory of another processor goes through the
link between both processors. Moving is best effort: pages that other processes have touched stay where they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from feedd_client.shm import Mapping

_log: Final = logging.getLogger("feedd_client")
_MBIND: Final = {"x86_64": 237, "aarch64": 235}  # number of the system call
_PREFERRED, _MOVE = 1, 2  # MPOL_PREFERRED, MPOL_MF_MOVE
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_NODES_MAX: Final = 1024
_NODES: Final = Path("/sys/devices/system/node")
_PCI: Final = Path("/sys/bus/pci/devices")


def move_near(mapping: Mapping, device: torch.device) -> None:
    """Move the arena to the memory node of a CUDA device, if the machine has several nodes. Never raises OSError."""
    node = None if node_count() < 2 else node_of(device)
    if node is None:
        return
    try:
        moved_to(mapping, node)
    except OSError as error:
        _log.info("shared memory stays on its memory node: %s", error.strerror)
    else:
        _log.info("moved %d MiB of shared memory to memory node %d, near %s", len(mapping) >> 20, node, device)


def node_count() -> int:
    """Return the number of memory nodes of this machine."""
    return sum(1 for one in _NODES.glob("node[0-9]*"))


def node_of(device: torch.device) -> int | None:
    """Return the memory node of a CUDA device; None: it is not known."""
    found: Any = torch.cuda.get_device_properties(device)  # its place on the bus is not in torch's stubs
    try:
        place = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        node = int((_PCI / place / "numa_node").read_text(encoding="ascii"))
    except (AttributeError, OSError, ValueError):  # an older torch, or a virtual machine without such files
        return None
    return None if node < 0 else node


def moved_to(mapping: Mapping, node: int) -> None:
    """Move the pages of an arena to a memory node. Their content stays.

    Raises:
        OSError: the kernel or the container does not allow it.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(0, f"no number of mbind is known for {platform.machine()}")
    with contextlib.suppress(OSError):
        mapping.madvise(_POPULATE_WRITE, 0, len(mapping))  # only pages that this process has mapped can be moved
    mask = (ctypes.c_ulong * (_NODES_MAX // 64))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    size_bytes = -(-len(mapping) // mmap.PAGESIZE) * mmap.PAGESIZE
    arguments = (mapping.address, size_bytes, _PREFERRED, ctypes.addressof(mask), _NODES_MAX, _MOVE)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
