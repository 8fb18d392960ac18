"""Arm: some columns of Parquet with feedd: the real daemon and FeedDataset, one trainer process, nothing cached."""

from __future__ import annotations

import time

from feedd_client import FeedDataset, Shuffle
from tests.bench.arms import daemon
from tests.bench.arms.columns import ROW, read_settings, take

_IDLE_S = 0.5  # a daemon that has just started still prepares its S3 client, on a thread


def main() -> None:
    """Run."""
    settings = read_settings()
    fields = {name: "int" if name == ROW else "float" for name in settings["columns"]}
    shuffle = Shuffle(window_shards=1) if settings["shuffled"] else False
    options = {"batch_size": settings["batch_size"], "fields": fields, "shuffle": shuffle}
    with daemon.running(settings) as address:
        time.sleep(_IDLE_S)
        take(FeedDataset(settings["url"], **options, address=address), settings)


if __name__ == "__main__":
    main()
