"""Arm: pictures from tar files through torch's DataLoader, decoded and resized by Pillow as tutorials do it."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from tests.bench.arms.decoder import decoder
from tests.bench.arms.utilisation import take

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEAN = torch.tensor((0.485, 0.456, 0.406))
_SCALE = torch.tensor((0.229, 0.224, 0.225))


class _Pictures(Dataset[torch.Tensor]):
    """One picture for each number: read, decoded, resized, and normalised to floating point."""

    def __init__(self, folder: str) -> None:
        self._found: list[tuple[str, int, int]] = []
        for path in sorted(Path(folder).iterdir()):
            with tarfile.open(path) as tar:
                self._found += [(str(path), one.offset_data, one.size) for one in tar if one.name.endswith(".jpg")]
        self._files: dict[str, int] = {}

    @cached_property
    def _decode(self) -> Any:
        return decoder({"decoder": "usual"})

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, number: int) -> torch.Tensor:
        path, at, size = self._found[number]
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        pixels = torch.from_numpy(self._decode(os.pread(self._files[path], size, at)))
        return (pixels.float().div_(255) - _MEAN).div_(_SCALE)


def _batches(settings: dict[str, Any]) -> Iterator[torch.Tensor]:
    pictures = _Pictures(settings["folder"])
    loader = DataLoader(
        pictures,
        batch_size=settings["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        persistent_workers=True,
    )
    while True:
        yield from loader


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    take(_batches(settings), settings)


if __name__ == "__main__":
    main()
