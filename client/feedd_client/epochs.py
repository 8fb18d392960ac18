"""The current epoch of a dataset, in memory that DataLoader workers share."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from multiprocessing import reduction
from typing import Any, Final

import torch

from feedd_client.errors import BadOptionError, StateError

_WORKERS_MAX: Final = 1024
_POLL_S: Final = 0.002
_BYTES: Final = 8 * (3 + 4 * _WORKERS_MAX)


class Epochs:
    """Counts epochs for the process that owns the dataset and for each of its DataLoader workers.

    The counts are in shared memory, because each pass forks new workers while the parent keeps the count. The memory
    is anonymous: ``/dev/shm`` may be full, read-only or missing. Workers that are spawned get its descriptor.
    """

    def __init__(self) -> None:
        self._map(_anonymous_file())

    def _map(self, fd: int | None) -> None:
        """Map the counts; ``fd``: their memory, owned by this object from now on; None: forks only can share it."""
        self._fd = fd
        memory = mmap.mmap(-1 if fd is None else fd, _BYTES)
        numbers = torch.frombuffer(memory, dtype=torch.int64)
        # Cell 0: the epoch. Cell 1 + w: the epoch of DataLoader worker w. Last cell: 1 once a pass has begun.
        self._cells = numbers[: 2 + _WORKERS_MAX]
        # For each worker: the pass in which it loaded a state, its process id, the state's epoch.
        self._loaded = numbers[2 + _WORKERS_MAX : -1].view(_WORKERS_MAX, 3)
        self._warned = numbers[-1:]  # 1 once a process has logged that ranks cannot compare

    def __getstate__(self) -> dict[str, Any]:
        """Return the counts, for a copy that shares nothing."""
        return {"cells": self._cells.tolist(), "loaded": self._loaded.tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the counts of another object."""
        self._map(_anonymous_file())
        self._cells.copy_(torch.tensor(state["cells"], dtype=torch.int64, device="cpu"))
        self._loaded.copy_(torch.tensor(state["loaded"], dtype=torch.int64, device="cpu"))

    def __del__(self) -> None:
        """Close the descriptor; the memory goes with its tensors."""
        fd: int | None = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)

    @property
    def started(self) -> bool:
        """Whether any process has begun a pass."""
        return bool(self._cells[-1])

    def begin(self) -> None:
        """Record that a pass has begun."""
        self._cells[-1] = 1

    def first_warning(self) -> bool:
        """Return whether no process has called this method before; of several workers only the first one calls it."""
        is_first = not bool(self._warned[0])
        self._warned[0] = 1
        return is_first

    def current(self, worker_id: int | None = None) -> int:
        """Return the epoch of the next pass.

        Raises:
            BadOptionError: there are more than 1024 workers.
        """
        if worker_id is None:
            return int(self._cells[0])
        if worker_id >= _WORKERS_MAX:
            raise BadOptionError(f"expected at most {_WORKERS_MAX} workers, got {worker_id + 1}", object="num_workers")
        return max(int(self._cells[0]), int(self._cells[1 + worker_id]))

    def loaded(self, epoch: int, worker_id: int, pass_id: int) -> None:
        """Record that a worker continues from a state of ``epoch`` in the pass ``pass_id``."""
        self._loaded[worker_id, 1:] = torch.tensor([os.getpid(), epoch], device="cpu")
        self._loaded[worker_id, 0] = pass_id

    def first_loaded(self, worker_count: int, pass_id: int, timeout_s: float) -> int:
        """Wait until all workers of a pass have loaded a state; return the lowest epoch of these states.

        Raises:
            StateError: some workers did not load a state within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            rows = self._loaded[:worker_count]
            here = rows[:, 0] == pass_id
            if bool(here.all()) and all(map(_lives, rows[:, 1].tolist())):  # pass ids may repeat, because seeds may
                return int(rows[:, 2].min())
            if time.monotonic() > deadline_s:
                raise StateError(
                    f"expected {worker_count} DataLoader workers to load a state, got {int(here.sum())} that did",
                    hint="resume with the loader that saved it",
                )
            time.sleep(_POLL_S)

    def come_to(self, epoch: int, worker_id: int | None) -> None:
        """Record that the owner, or a worker, has reached ``epoch``."""
        self._cells[0 if worker_id is None else 1 + worker_id] = epoch

    def set(self, epoch: int, worker_id: int | None) -> None:
        """Set ``epoch``, which may be lower than before. A worker sets only its own epoch, not that of its siblings."""
        if worker_id is None:
            self._cells[:-1].zero_()
            self._cells[0] = epoch
        else:
            self._cells[1 + worker_id] = epoch
            self._cells[0].clamp_(max=epoch)  # only lowered: a sibling may have loaded an earlier epoch


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _anonymous_file() -> int | None:
    """Return a descriptor of memory without a name; None: the system gives neither memory nor a temporary file."""
    fd = None
    with contextlib.suppress(OSError):  # a seccomp profile may refuse it
        fd = os.memfd_create("feedd-epochs", os.MFD_CLOEXEC)
    if fd is None:
        with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    if fd is not None:
        os.truncate(fd, _BYTES)
    return fd


def _shared(epochs: Epochs) -> tuple[Any, ...]:
    """Return how a spawned worker gets the same counts.

    Raises:
        StateError: the memory has no descriptor.
    """
    if epochs._fd is None:  # noqa: SLF001 - of the same module
        raise StateError(
            "expected memory to share with spawned DataLoader workers, got neither memfd_create nor a temporary folder",
            hint="set TMPDIR to a writable folder, or use workers that are forked",
        )
    return _mapped, (reduction.DupFd(epochs._fd),)  # noqa: SLF001 - see above


def _mapped(handle: Any) -> Epochs:  # noqa: ANN401 - its class has no public name
    epochs = Epochs.__new__(Epochs)
    epochs._map(handle.detach())  # noqa: SLF001 - of the same module
    return epochs


reduction.ForkingPickler.register(Epochs, _shared)
