"""Arm: tokens with mosaicml-streaming, from MDS shards that lie here already."""

from __future__ import annotations

from typing import Any

import torch
from streaming import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.tokens import read_settings, take


class _Tokens(StreamingDataset):  # type: ignore[misc]  # its base is not installed where mypy runs
    def __getitem__(self, at: Any) -> Any:
        return torch.from_numpy(super().__getitem__(at)["tokens"].copy())  # its arrays are read-only


def main() -> None:
    """Run."""
    settings = read_settings()
    dataset = _Tokens(local=settings["folder"], shuffle=True, batch_size=settings["batch_size"])
    loader = StreamingDataLoader(
        dataset,
        batch_size=settings["batch_size"],
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        persistent_workers=True,
    )
    take(loader, lambda batch: batch, settings)


if __name__ == "__main__":
    main()
