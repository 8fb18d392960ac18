"""Arm: tokens out of a memory-mapped file on this machine's own disk, in one of three ways.

``loader`` is a map-style dataset in a DataLoader with workers. ``rows`` is one vectorised gather in the trainer's own
process, the shortest code there is. ``get_batch`` is nanoGPT's function of that name: a slice a row, then ``stack``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.bench.arms.tokens import TOKENS, read_settings, take

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class _Blocks(Dataset[torch.Tensor]):
    def __init__(self, path: str) -> None:
        self._tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self._tokens) // TOKENS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._tokens[index * TOKENS : (index + 1) * TOKENS].copy())


class _InProcess:
    """Batches of a shuffled epoch, made where they are used; a new order for each epoch."""

    def __init__(self, path: str, batch_size: int, *, gather: bool) -> None:
        self._rows = np.memmap(path, np.uint16, "r").reshape(-1, TOKENS)
        self._batch_size = batch_size
        self._gather = gather
        self._epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._epoch += 1
        order = np.random.default_rng(self._epoch).permutation(len(self._rows))
        for at in range(0, len(order), self._batch_size):
            chosen = order[at : at + self._batch_size]
            if self._gather:
                yield torch.from_numpy(self._rows[chosen])
            else:
                yield torch.stack([torch.from_numpy(self._rows[row].copy()) for row in chosen])


def _batches(settings: dict[str, Any]) -> Iterable[torch.Tensor]:
    if settings["way"] != "loader":
        return _InProcess(settings["path"], settings["batch_size"], gather=settings["way"] == "rows")
    return DataLoader(
        _Blocks(settings["path"]),
        batch_size=settings["batch_size"],
        shuffle=True,
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        persistent_workers=True,
    )


def main() -> None:
    """Run."""
    settings = read_settings()
    take(_batches(settings), lambda batch: batch, settings)


if __name__ == "__main__":
    main()
