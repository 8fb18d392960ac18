"""Fixtures' helpers for client tests: servers and datasets that are gone when the test is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch

from feedd_client import FeedDataset
from tests.fakes.feed_data import image_of
from tests.fakes.feed_script import Script
from tests.fakes.feed_server import FakeFeed

if TYPE_CHECKING:
    from pathlib import Path

BATCH_SIZE = 4


class Bench:
    """Servers and datasets of one test; at the end all are closed and no server saw its contract broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def server(self, **script: Any) -> FakeFeed:
        """Start a server."""
        self._count += 1
        server = FakeFeed(str(self._folder / f"{self._count}.sock"), Script(**script))

        def end() -> None:
            server.stop()
            assert not server.violations, server.violations

        self._stack.callback(end)
        return server

    def dataset(self, server: FakeFeed | str, **arguments: Any) -> FeedDataset:
        """Make a dataset on ``server``; batches of 4 unless said otherwise."""
        address = server if isinstance(server, str) else server.address
        arguments = {"batch_size": BATCH_SIZE, "reconnect_timeout_s": 10.0, "address": address, **arguments}
        dataset = FeedDataset(arguments.pop("url", "s3://bucket/train/"), **arguments)
        self._stack.callback(dataset.close)
        return dataset


def ids(batch: dict[str, Any]) -> list[int]:
    """Sample ids of a batch."""
    return [int(one) for one in batch["cls"].tolist()]


def check_rich(batch: dict[str, Any], wanted: list[int]) -> None:
    """Every field of the batch is that of the samples ``wanted``."""
    assert ids(batch) == wanted
    for row, number in enumerate(wanted):
        assert torch.equal(batch["img"][row], torch.from_numpy(image_of(number)))
        assert batch["raw"].bytes(row) == bytes([number % 256]) * (number % 5 + 1)
        assert batch["mat"][row].tolist() == [[number % 1000] * 2] * (number % 3 + 1)
        assert batch["__key__"][row] == f"sample-{number:09d}"
        assert batch["meta"][row] == {"id": number}
