"""Which epoch a dataset has come to, in memory that DataLoader workers share."""

from __future__ import annotations

import os
import time
from typing import Final

import torch

from feedd_client.errors import BadOptionError, StateError

_WORKERS_MAX: Final = 1024
_POLL_S: Final = 0.002


class Epochs:
    """Counts epochs, for the process that owns the dataset and for each of its DataLoader workers.

    In shared memory, because workers are forked anew for each pass while their parent keeps the count.
    """

    def __init__(self) -> None:
        # Cell 0: the epoch. Cell 1 + w: the epoch DataLoader worker w has come to. Last cell: 1 once a pass has begun.
        self._cells = torch.zeros(2 + _WORKERS_MAX, dtype=torch.int64, device="cpu")
        self._cells.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # By worker: the pass into which it loaded a state, its process, the state's epoch.
        self._loaded = torch.zeros((_WORKERS_MAX, 3), dtype=torch.int64, device="cpu")
        self._loaded.share_memory_()  # type: ignore[no-untyped-call]  # see above

    @property
    def begun(self) -> bool:
        """Whether any process has begun a pass."""
        return bool(self._cells[-1])

    def begin(self) -> None:
        """Take note that a pass has begun."""
        self._cells[-1] = 1

    def current(self, worker_id: int | None = None) -> int:
        """Return the epoch of the next pass.

        Raises:
            BadOptionError: more workers than there is room for.
        """
        if worker_id is None:
            return int(self._cells[0])
        if worker_id >= _WORKERS_MAX:
            raise BadOptionError(f"expected at most {_WORKERS_MAX} workers, got {worker_id + 1}", object="num_workers")
        return max(int(self._cells[0]), int(self._cells[1 + worker_id]))

    def loaded(self, epoch: int, worker_id: int, pass_id: int) -> None:
        """Take note that a worker goes on from a state of ``epoch`` in that pass."""
        self._loaded[worker_id, 1:] = torch.tensor([os.getpid(), epoch], device="cpu")
        self._loaded[worker_id, 0] = pass_id

    def first_loaded(self, worker_count: int, pass_id: int, timeout_s: float) -> int:
        """Return the least epoch from which a worker of that pass goes on; waits until all have said theirs.

        Raises:
            StateError: they have not in that time.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            rows = self._loaded[:worker_count]
            here = rows[:, 0] == pass_id
            if bool(here.all()) and all(map(_lives, rows[:, 1].tolist())):  # seeds, and so passes, may come again
                return int(rows[:, 2].min())
            if time.monotonic() > deadline_s:
                raise StateError(
                    f"expected {worker_count} DataLoader workers to load a state, got {int(here.sum())} that did",
                    hint="resume with the loader that saved it",
                )
            time.sleep(_POLL_S)

    def come_to(self, epoch: int, worker_id: int | None) -> None:
        """Take note that the owner, or a worker, has come to ``epoch``."""
        self._cells[0 if worker_id is None else 1 + worker_id] = epoch

    def set(self, epoch: int, worker_id: int | None) -> None:
        """Go to ``epoch``, back too; from a worker that does not hold for its siblings, which may stand elsewhere."""
        if worker_id is None:
            self._cells[:-1].zero_()
            self._cells[0] = epoch
        else:
            self._cells[1 + worker_id] = epoch
            self._cells[0].clamp_(max=epoch)  # no more than that: a sibling may have loaded the epoch before


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
