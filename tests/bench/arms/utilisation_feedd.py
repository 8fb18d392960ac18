"""Arm: pictures from tar files through a daemon and FeedDataset, from an empty cache. The GPU would normalise them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.utilisation import take

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _batches(dataset: FeedDataset) -> Iterator[torch.Tensor]:
    while True:
        for batch in dataset:
            yield batch["jpg"]


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    with daemon.running(settings) as address:
        dataset = FeedDataset(
            f"file://{settings['folder']}/",
            batch_size=settings["batch_size"],
            fields={"jpg": "image:224x224", "cls": "int"},
            shuffle=True,
            address=address,
        )
        take(_batches(dataset), settings)
        dataset.close()


if __name__ == "__main__":
    main()
