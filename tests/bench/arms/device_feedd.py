"""Arm: pictures from a full cache to the GPU: feedd's DeviceLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd_client import DeviceLoader, FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.device import ROW_VALUES, read_settings, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _batches(dataset: FeedDataset) -> Iterator[torch.Tensor]:
    while True:
        for batch in DeviceLoader(dataset, "cuda"):
            yield batch["tokens"]


def main() -> None:
    """Run."""
    settings = read_settings()
    with daemon.running(settings) as address:
        dataset = FeedDataset(
            f"file://{settings['folder']}/",
            batch_size=settings["batch_size"],
            fields={"tokens": f"tokens:uint16:{ROW_VALUES}"},
            shuffle=True,
            address=address,
        )
        take(_batches(dataset), settings)
        dataset.close()


if __name__ == "__main__":
    main()
