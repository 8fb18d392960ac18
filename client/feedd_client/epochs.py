"""Which epoch a dataset has come to, in memory that DataLoader workers share."""

from __future__ import annotations

from typing import Final

import torch

from feedd_client.errors import BadOptionError

_WORKERS_MAX: Final = 1024


class Epochs:
    """Counts epochs, for the process that owns the dataset and for each of its DataLoader workers.

    In shared memory, because workers are forked anew for each pass while their parent keeps the count.
    """

    def __init__(self) -> None:
        # Cell 0: the epoch. Cell 1 + w: the epoch DataLoader worker w has come to. Last cell: 1 once a pass has begun.
        self._cells = torch.zeros(2 + _WORKERS_MAX, dtype=torch.int64)
        self._cells.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped

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

    def come_to(self, epoch: int, worker_id: int | None) -> None:
        """Take note that the owner, or a worker, has come to ``epoch``."""
        self._cells[0 if worker_id is None else 1 + worker_id] = epoch

    def set(self, epoch: int, worker_id: int | None) -> None:
        """Go to ``epoch``, back too; from a worker that does not hold for its siblings, which may have gone on."""
        if worker_id is None:
            self._cells[:-1].zero_()
        else:
            self._cells[1 + worker_id] = epoch
        self._cells[0] = epoch
