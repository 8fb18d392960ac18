"""Arm: samples of MLPerf Storage with feedd: a daemon with an empty cache, and FeedDataset."""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import torch

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.consume import consume, read_settings

if TYPE_CHECKING:
    from tests.bench.arms.consume import Pair

_KEY = "__key__"


def main() -> None:
    """Run: ``record`` is the field of the bytes, ``label`` that of the number; without it, names tell the numbers."""
    settings = read_settings()
    record, label = settings["record"], settings["label"]

    def to_pair(batch: Any) -> Pair:
        if label:
            return batch[record], batch[label]
        return batch[record], torch.tensor([int(PurePosixPath(key).name.partition(".")[0]) for key in batch[_KEY]])

    with daemon.running(settings) as address:
        time.sleep(settings["idle_s"])  # a daemon that is ready still loads what first requests would wait for
        dataset = FeedDataset(
            f"s3://{settings['bucket']}/{settings['folder']}/",
            batch_size=settings["batch_size"],
            fields=settings["fields"],
            shuffle=True,
            keys=not label,
            address=address,
        )
        consume(dataset, to_pair, settings)


if __name__ == "__main__":
    main()
