"""Arm: an epoch over plain objects with feedd."""

from __future__ import annotations

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.consume import consume, read_settings


def main() -> None:
    """Run."""
    settings = read_settings()
    with daemon.running(settings) as address:
        dataset = FeedDataset(
            f"s3://{settings['bucket']}/{settings['folder']}/",
            batch_size=settings["batch_size"],
            fields={"jpg": "image:224x224", "label": f"table:{settings['labels']}"},
            shuffle=True,
            address=address,
            prefetch=settings["prefetch"],
        )
        consume(dataset, lambda batch: (batch["jpg"], batch["label"]), settings)


if __name__ == "__main__":
    main()
