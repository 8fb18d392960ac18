"""Arm: tokens with a DataLoader over a memory-mapped file, as nanoGPT reads its ``train.bin``."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.bench.arms.tokens import TOKENS, read_settings, take


class _Blocks(Dataset[torch.Tensor]):
    def __init__(self, path: str) -> None:
        self._tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self._tokens) // TOKENS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._tokens[index * TOKENS : (index + 1) * TOKENS].copy())


def main() -> None:
    """Run."""
    settings = read_settings()
    loader = DataLoader(
        _Blocks(settings["path"]),
        batch_size=settings["batch_size"],
        shuffle=True,
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        persistent_workers=True,
    )
    take(loader, lambda batch: batch, settings)


if __name__ == "__main__":
    main()
