"""Arm: some columns of Parquet with feedd: the real daemon and FeedDataset, one trainer process, nothing cached."""

from __future__ import annotations

from feedd_client import FeedDataset
from tests.bench.arms import daemon
from tests.bench.arms.columns import ROW, read_settings, take


def main() -> None:
    """Run."""
    settings = read_settings()
    fields = {name: "int" if name == ROW else "float" for name in settings["columns"]}
    with daemon.running(settings) as address:
        dataset = FeedDataset(settings["url"], batch_size=settings["batch_size"], fields=fields, address=address)
        take(dataset, settings)


if __name__ == "__main__":
    main()
