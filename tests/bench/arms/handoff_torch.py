"""Arm: a torch DataLoader with worker processes hands over batches that already lie in its workers' memory."""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Numbers(IterableDataset[int]):
    """Numbers of tensors that were allocated in shared memory beforehand: a worker hands over nothing but a number.

    So does the best loader that can be built on torch's queue: workers write into a fixed set of shared (and pinned)
    tensors, and a number says which. As in feedd's arm, each tensor is written once and never again.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __iter__(self) -> Iterator[int]:
        yield from cycle(range(self._count))


class _Ready(IterableDataset[torch.Tensor]):
    """The same batch over and over.

    ``fresh``: each time a tensor that is not in shared memory yet, as a worker that has just made a batch has it; torch
    copies it into a new segment. Otherwise one tensor that already is in shared memory: no copy, and the consumer
    and the worker look at the same bytes at the same time, which no real loader could allow.
    """

    def __init__(self, shape: list[int], dtype: str, *, fresh: bool) -> None:
        super().__init__()
        self._shape, self._dtype, self._fresh = shape, dtype, fresh

    def __iter__(self) -> Iterator[torch.Tensor]:
        data = np.full(self._shape, 7, dtype=self._dtype)
        if self._fresh:
            while True:
                yield torch.from_numpy(data)
        shared = torch.from_numpy(data)
        shared.share_memory_()  # type: ignore[no-untyped-call]  # torch left it untyped
        yield from repeat(shared)


def _tensors(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield batches for ever, handed over as ``way`` says: fresh, shared or preallocated."""
    way, workers, ahead = settings["way"], settings["workers"], settings["prefetch_factor"]
    options: dict[str, Any] = {"batch_size": None, "num_workers": workers, "prefetch_factor": ahead}
    if way != "preallocated":
        dataset = _Ready(settings["shape"], settings["dtype"], fresh=way == "fresh")
        yield from DataLoader(dataset, **options)
        return
    slots = [torch.from_numpy(np.full(settings["shape"], 7, settings["dtype"])) for _ in range(workers * ahead)]
    for slot in slots:
        slot.share_memory_()  # type: ignore[no-untyped-call]  # torch left it untyped
    yield from (slots[number] for number in DataLoader(_Numbers(len(slots)), **options))


def main() -> None:
    """Read settings, run for the time asked, print the rate."""
    settings = json.loads(sys.argv[1])
    batches = _tensors(settings)
    for _ in range(2 * settings["workers"] * settings["prefetch_factor"]):
        next(batches)
    count = total = 0
    cpu_s, begin_s = tree_cpu_s(), time.perf_counter()
    end_s = begin_s + settings["duration_s"]
    while (now_s := time.perf_counter()) < end_s:
        total += int(next(batches).view(-1)[-1])
        count += 1
    elapsed_s = now_s - begin_s
    cpu_s = tree_cpu_s() - cpu_s
    assert total == 7 * count, f"expected {7 * count} as the sum of last elements, got {total}"
    print(json.dumps({"batches_per_s": count / elapsed_s, "cpu_ms_per_batch": 1000 * cpu_s / count, "batches": count}))


if __name__ == "__main__":
    main()
