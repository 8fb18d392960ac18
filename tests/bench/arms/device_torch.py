"""Arm: pictures from memory-mapped files to the GPU: torch's DataLoader with workers and pinned memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from tests.bench.arms.device import ROW_VALUES, read_settings, take

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Rows(Dataset[torch.Tensor]):
    """A batch at a time: one gather, the fastest that a worker can do."""

    def __init__(self, folder: str) -> None:
        files = sorted(Path(folder).glob("*.bin"))
        self._shards = [np.memmap(path, np.uint16, "r").reshape(-1, ROW_VALUES) for path in files]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __getitem__(self, rows: list[int]) -> torch.Tensor:
        each = len(self._shards[0])
        out = np.empty((len(rows), ROW_VALUES), np.uint16)
        for at, row in enumerate(rows):
            out[at] = self._shards[row // each][row % each]
        return torch.from_numpy(out)


def _batches(settings: dict[str, int], rows: _Rows) -> Iterator[torch.Tensor]:
    sampler = BatchSampler(RandomSampler(rows), settings["batch_size"], drop_last=True)
    loader = DataLoader(
        rows,
        batch_size=None,
        sampler=sampler,
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        pin_memory=True,
        persistent_workers=True,
    )
    while True:
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)


def main() -> None:
    """Run."""
    settings = read_settings()
    take(_batches(settings, _Rows(settings["folder"])), settings)


if __name__ == "__main__":
    main()
