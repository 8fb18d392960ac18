"""Shared memory moves to the memory node of the GPU that reads it, where a machine has several."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import DeviceLoader, numa
from tests.fakes.feed_client import check_rich, ids

if TYPE_CHECKING:
    from pathlib import Path

    from feedd_client.shm import Mapping
    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two nodes, with a GPU on the second."""
    for node in range(2):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
    gpu = tmp_path / "pci" / "0001:3b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text("1\n")
    monkeypatch.setattr(numa, "_NODES", tmp_path / "node")
    monkeypatch.setattr(numa, "_PCI", tmp_path / "pci")
    properties = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    return tmp_path


def test_the_node_of_a_gpu_is_read(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the kernel tells for the device's place on the bus; where nobody tells it, it is not known."""
    assert numa.node_count() == 2
    assert numa.node_of(DEVICE) == 1
    (nodes / "pci" / "0001:3b:00.0" / "numa_node").write_text("-1\n")
    assert numa.node_of(DEVICE) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    assert numa.node_of(DEVICE) is None


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
@pytest.mark.parametrize("refused", [False, True])
def test_an_arena_moves_before_it_is_registered(
    bench: Bench, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """It moves once, while no GPU reads it; where the kernel refuses, batches arrive all the same."""
    moves: list[tuple[int, int]] = []

    def move(mapping: Mapping, node: int) -> None:
        moves.append((node, cuda.host.registered_count()))
        if refused:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(numa, "moved_to", move)
    loader = DeviceLoader(bench.dataset(bench.server(steps=4)), "cuda")
    with caplog.at_level(logging.INFO, "feedd_client"):
        assert [number for _ in range(2) for batch in loader for number in ids(batch)][:16] == list(range(16))
    assert moves == [(1, 0)]
    assert ("Operation not permitted" in caplog.text) == refused
    loader.close()


def test_one_node_is_left_alone(nodes: Path, monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """On a machine of one node nothing is asked and nothing moves."""
    (nodes / "node" / "node1").rmdir()
    monkeypatch.setattr(numa, "node_of", None)
    numa.move_near(_held(bench)[0], DEVICE)


def _held(bench: Bench) -> tuple[Mapping, dict[str, Any]]:
    """Return an arena, and a batch in it."""
    batches = bench.dataset(bench.server(steps=2)).start_pass(copy=False)
    batch = next(batches)
    assert batches.mapping is not None
    return batches.mapping, batch


def test_moving_keeps_the_content(bench: Bench) -> None:
    """The system call is made with a mask of the node, and the bytes stay; a node that is not there is an error."""
    mapping, batch = _held(bench)
    if _forbidden(mapping):
        return
    numa.moved_to(mapping, 0)
    check_rich(batch, [0, 1, 2, 3])
    with pytest.raises(OSError, match="Invalid"):
        numa.moved_to(mapping, 900)
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    get_mempolicy = {"x86_64": 239, "aarch64": 236}[os.uname().machine]
    call: Any = ctypes.CDLL(None, use_errno=True).syscall
    address = ctypes.c_ulong(mapping.address)
    assert call(get_mempolicy, ctypes.byref(mode), mask, ctypes.c_ulong(1024), address, ctypes.c_ulong(2)) == 0
    assert (mode.value, mask[0]) == (1, 1)  # MPOL_PREFERRED, node 0


def _forbidden(mapping: Mapping) -> bool:
    """Whether the container forbids the system call."""
    try:
        numa.moved_to(mapping, 0)
    except OSError as error:
        return error.errno in {errno.EPERM, errno.ENOSYS}
    return False
