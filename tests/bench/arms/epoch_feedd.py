"""Arm: an epoch, or its first batch, with feedd: the real daemon and FeedDataset, from tar shards."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from feedd_client import FeedDataset, Shuffle
from tests.bench.arms import daemon
from tests.bench.arms.consume import Pair, consume, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator


def make_dataset(settings: dict[str, Any], address: str | None) -> FeedDataset:
    """Return the pictures as a user writes it; ``window_shards`` of 0 leaves the shuffle window to the daemon."""
    window_shards = settings.get("window_shards", 2)  # 2304 pictures: more than the fastest peer's buffer of 1000
    return FeedDataset(
        f"s3://{settings['bucket']}/tar/",
        batch_size=settings["batch_size"],
        fields={"jpg": "image:224x224", "cls": "int"},
        shuffle=Shuffle(window_shards=window_shards) if window_shards else True,
        address=address,
        prefetch=settings["prefetch"],
        share=settings.get("share"),
        decoded_cache=settings.get("decoded_cache", False),
    )


def to_pair(batch: dict[str, Any]) -> Pair:
    """Take images and labels out of a batch."""
    return batch["jpg"], batch["cls"]


def take_epoch(settings: dict[str, Any], address: str) -> None:
    """Take all batches of an epoch, so that the daemon's cache has all shards."""
    for batch in make_dataset(settings, address):
        int(batch["cls"][0])


def _earlier_trainer(settings: dict[str, Any], address: str) -> None:
    """Run an epoch in a process that has ended when this returns, as the trainer before this one has."""
    trainer = multiprocessing.get_context("spawn").Process(target=take_epoch, args=(settings, address))
    trainer.start()
    trainer.join()
    assert trainer.exitcode == 0, f"expected the earlier trainer to end well, got exit {trainer.exitcode}"


class _ColdDaemon:
    """A data set whose daemon is started inside ``iter``, so that its start-up is measured."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __iter__(self) -> Iterator[Any]:
        with daemon.running(self._settings) as address:
            yield from make_dataset(self._settings, address)


def main() -> None:
    """Run: ``daemon`` is warm or cold, ``cache`` is warm or cold."""
    settings = read_settings()
    if settings.get("address"):  # a rank or a job of several: whoever started it started the daemon
        consume(make_dataset(settings, settings["address"]), to_pair, settings)
        return
    if settings["daemon"] == "cold":
        consume(_ColdDaemon(settings), to_pair, settings)
        return
    begin_s = time.perf_counter()
    with daemon.running(settings) as address:
        daemon_start_s = time.perf_counter() - begin_s
        if settings["cache"] == "warm":
            _earlier_trainer(settings, address)
        time.sleep(settings.get("idle_s", 0.0))  # a daemon that is ready still loads what first requests would wait for
        dataset: Any = make_dataset(settings, address)
        if settings.get("torch_workers"):  # needless, and what a training script that had a DataLoader goes on doing
            dataset = DataLoader(dataset, batch_size=None, num_workers=settings["torch_workers"])
        consume(dataset, to_pair, settings, daemon_start_s=daemon_start_s)


if __name__ == "__main__":
    main()
