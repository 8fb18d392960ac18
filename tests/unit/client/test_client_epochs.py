"""Where DataLoader workers stand, when each may have loaded another epoch."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client.epochs import Epochs
from feedd_client.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

PASS, ANOTHER = 7000, 6000


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_workers_go_back_to_epochs_of_their_own(order: tuple[int, int]) -> None:
    """One of them had its part of epoch 4 already: whoever says so first, each stands where it was."""
    found = Epochs()
    found.set(9, None)
    wanted = {0: 5, 1: 4}
    for worker in order:
        found.set(wanted[worker], worker)
        assert found.current(worker) == wanted[worker]
    assert {worker: found.current(worker) for worker in wanted} == wanted


def test_who_is_behind_is_known_when_all_have_loaded() -> None:
    """The epoch of the one that is furthest back; workers wait for each other's."""
    found, least = Epochs(), []
    found.loaded(5, 0, PASS)
    waiting = threading.Thread(target=lambda: least.append(found.first_loaded(2, PASS, 20)))
    waiting.start()
    found.loaded(4, 1, PASS)
    waiting.join()
    assert least == [4]


def test_other_passes_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what was loaded in another pass nor, where seeds come again, by workers that are gone."""
    found = Epochs()
    found.loaded(5, 0, PASS)
    found.loaded(4, 1, ANOTHER)
    with pytest.raises(StateError, match="2 DataLoader workers to load a state, got 1"):
        found.first_loaded(2, PASS, 0.01)
    found.loaded(4, 1, PASS)
    mine = os.getpid()

    def kill(pid: int, _: Any) -> None:
        assert pid == mine
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(StateError):
        found.first_loaded(2, PASS, 0.01)


_PERSISTENT = """
import multiprocessing, os, sys
from feedd_client.epochs import Epochs

def refuse(*_):
    raise PermissionError(1, "Operation not permitted")

if sys.argv[2] == "refused":
    os.memfd_create = refuse

def work(epochs, seen, moved):
    seen.put(epochs.current(0))
    moved.wait(60)
    seen.put(epochs.current(0))
    epochs.come_to(9, 0)

if __name__ == "__main__":
    found = Epochs()
    found.set(3, None)
    context = multiprocessing.get_context(sys.argv[1])
    seen, moved = context.Queue(), context.Event()
    worker = context.Process(target=work, args=(found, seen, moved))
    worker.start()
    first = seen.get(timeout=60)
    found.set(7, None)
    moved.set()
    second = seen.get(timeout=60)
    worker.join(60)
    print(first, second, found.current(0))
"""


@pytest.mark.parametrize("memfd", ["memfd", "refused"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_see_set_epoch(method: str, memfd: str, tmp_path: Path) -> None:
    """However a persistent worker was started, it sees the owner's next epoch, and the owner sees the worker's."""
    script = tmp_path / "persistent.py"
    script.write_text(_PERSISTENT)
    done = subprocess.run(
        [sys.executable, str(script), method, memfd], check=False, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "3 7 9\n", done.stderr


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_shares_nothing(copied: Any) -> None:
    """A copy of a dataset starts at the same epochs, and then counts for itself."""
    found = Epochs()
    found.set(3, None)
    found.begin()
    found.loaded(5, 0, PASS)
    other = copied(found)
    assert (other.current(), other.started, other.first_loaded(1, PASS, 1)) == (3, True, 5)
    other.set(8, None)
    assert found.current() == 3


def test_without_memory_that_has_a_descriptor_a_spawned_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked workers share the counts all the same; a spawned one would count for itself, so that is an error."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = Epochs()
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=found.come_to, args=(4, 0))
    worker.start()
    worker.join(60)
    assert found.current(0) == 4
    with pytest.raises(StateError, match="spawned DataLoader workers"):
        reduction.ForkingPickler.dumps(found)


@pytest.mark.parametrize("shm", ["size=4k", "ro"])
def test_dev_shm_is_not_needed(shm: str) -> None:
    """A dataset is made where /dev/shm is full or read-only."""
    made = "from feedd_client import FeedDataset; FeedDataset('s3://b/k/', batch_size=1, address='unix:///nobody')"
    fill = "head -c 4096 /dev/zero > /dev/shm/full" if shm != "ro" else "true"
    script = f'mount -t tmpfs -o {shm} tmpfs /dev/shm || exit 77; {fill}; exec {sys.executable} -c "{made}"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], check=False, capture_output=True, text=True)
    if done.returncode in {1, 77} and "feedd" not in done.stderr:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
