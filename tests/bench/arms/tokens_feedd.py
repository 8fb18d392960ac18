"""Arm: tokens with feedd: the real daemon and FeedDataset, one trainer process."""

from __future__ import annotations

from feedd_client import FeedDataset, Shuffle
from tests.bench.arms import daemon
from tests.bench.arms.tokens import TOKENS, read_settings, take


def main() -> None:
    """Run."""
    settings = read_settings()
    with daemon.running(settings) as address:
        dataset = FeedDataset(
            settings["url"],
            batch_size=settings["batch_size"],
            fields={"tokens": settings.get("field", f"tokens:uint16:{TOKENS}")},
            shuffle=Shuffle(window_shards=settings["window_shards"]),
            address=address,
        )
        take(dataset, lambda batch: batch["tokens"], settings)


if __name__ == "__main__":
    main()
