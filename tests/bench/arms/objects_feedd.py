"""Arm: an epoch over plain objects with feedd."""

from __future__ import annotations

import functools

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.consume import consume, read_settings
from tests.bench.procs import process_cpu_s, thread_cpu_s


def main() -> None:
    """Run."""
    settings = read_settings()
    child, address = daemon.start(settings)
    try:
        daemon.wait_ready(child, address)
        dataset = FeedDataset(
            f"s3://{settings['bucket']}/{settings['folder']}/",
            batch_size=settings["batch_size"],
            fields={"jpg": "image:224x224", "label": f"table:{settings['labels']}"},
            shuffle=True,
            address=address,
            prefetch=settings["prefetch"],
        )
        clocks = {
            "loop": functools.partial(thread_cpu_s, child.pid),
            "daemon": functools.partial(process_cpu_s, child.pid),
        }
        consume(dataset, lambda batch: (batch["jpg"], batch["label"]), settings, clocks)
    finally:
        daemon.stop(child)


if __name__ == "__main__":
    main()
