"""A file of tokens that is larger than the cache, from S3 through real daemons to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd_client import FeedDataset, Topology
from tests.fakes.s3.objects import endless_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZE = 24 << 20
WINDOW = 513
SETTINGS = ("fetch.span_size=1MiB",)
FIELDS = {"tokens": f"tokens:uint32:{WINDOW}"}
SPAN_ROWS = (1 << 20) // (4 * (WINDOW - 1))


def _numbers(batches: list[np.ndarray]) -> list[int]:
    """Return the numbers of windows, each checked against the bytes of the object."""
    step_bytes = 4 * (WINDOW - 1)
    rows = np.concatenate(batches)
    numbers: list[int] = (rows[:, 0] // step_bytes).tolist()  # every eight bytes tell their own offset
    for row, number in zip(rows, numbers, strict=True):
        assert row.tobytes() == endless_bytes(number * step_bytes, 4 * WINDOW)
    return numbers


def test_larger_than_the_cache_on_four_nodes_and_through_a_kill(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each node fetches a quarter; a killed daemon's successor goes on; in all, each window comes once an epoch."""
    s3.put_endless("data", "t/a.bin", SIZE)
    daemon = daemons(cache_size="10MiB", settings=SETTINGS)
    windows = (SIZE // 4 - WINDOW) // (WINDOW - 1) + 1
    found: list[int] = []
    for node in range(4):
        dataset = FeedDataset(
            "s3://data/t/",
            batch_size=32,
            fields=FIELDS,
            shuffle=True,
            uneven="allow",
            topology=Topology(4, node, 1, 0, 4, node),
            address=daemon.address,
            copy=True,
        )
        before = int(str(s3.stats()["body_bytes"]))
        batches = []
        for batch in dataset:
            batches.append(batch["tokens"].numpy())
            if node == 1 and len(batches) == 40:
                daemon.kill()
                daemon.start()
        fetched = int(str(s3.stats()["body_bytes"])) - before
        assert fetched < SIZE // 4 + (5 << 20 if node == 1 else 3 << 20)  # the next epoch begins in advance
        numbers = _numbers(batches)
        assert abs(len(numbers) - windows // 4) <= SPAN_ROWS
        found += numbers
    assert sorted(found) == list(range(windows))
