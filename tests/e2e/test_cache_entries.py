"""Rows in the files' order that a trainer reads in the daemon's cache itself: a user cannot tell, whatever happens."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from feedd_client import FeedDataset, shm
from tests.e2e.test_columnar import put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROWS, SHARDS, BATCH = 40_000, 4, 32
FIELDS = {"n": "int", "x": "float"}


@pytest.fixture
def cache() -> Iterator[Path]:
    """A folder whose files are memory, which only the daemon may enter."""
    with tempfile.TemporaryDirectory(prefix="entries-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon], cache: Path) -> Daemon:
    """A daemon with that cache, which has room for two of four shards."""
    for shard in range(SHARDS):
        numbers = np.arange(shard * ROWS, (shard + 1) * ROWS)
        put(s3, f"e/{shard}.parquet", pa.table({"n": numbers, "x": numbers.astype(np.float32)}))
    return daemons("entries", cache_size="1200KiB", flags=("--cache-dir", str(cache / "cache")))


def _is_mapped(cache: Path) -> bool:
    return str(cache) in Path("/proc/self/maps").read_text()


def _numbers(batches: Any, change: Callable[[Any], object] = lambda _: None) -> list[int]:
    found: list[Any] = []
    for batch in batches:
        found.append(np.stack((batch["n"].numpy(), batch["x"].numpy().astype(np.int64))))
        change(batch)
    numbers, same = np.concatenate(found, axis=1)
    assert (numbers == same).all()
    return [int(number) for number in numbers]


def test_epochs_are_whole(daemon: Daemon, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row comes once, through evictions, changes in place, kept batches, a killed daemon and refused files."""
    every = list(range(SHARDS * ROWS))
    dataset = FeedDataset("s3://data/e/", address=daemon.address, batch_size=BATCH, fields=FIELDS)
    was_mapped = []

    def spoil(batch: Any) -> None:
        if int(batch["n"][0]) // BATCH % 100 == 50:
            was_mapped.append(_is_mapped(cache))
        batch["n"].fill_(-1)
        batch["x"].fill_(-1)

    assert _numbers(dataset, spoil) == every
    assert _numbers(dataset, spoil) == every  # nothing of the first epoch's changes is seen
    assert sum(was_mapped) > len(was_mapped) // 2
    kept = list(dataset)  # more than there are slots, and shards that are evicted meanwhile
    assert _numbers(kept) == every
    del kept

    steps = iter(dataset)
    begun = _numbers(itertools.islice(steps, 100))
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    daemon.start()
    assert begun + _numbers(steps) == every
    assert dataset.stats()["reconnects"] == 1

    def refuse(_path: str, _token: bytes) -> int:
        raise PermissionError("the daemon refused")

    monkeypatch.setattr(shm, "entry_file", refuse)
    was_mapped.clear()
    assert _numbers(dataset, spoil) == every
    assert not any(was_mapped)
    assert dataset.stats()["reconnects"] == 2
    dataset.close()
    assert not _is_mapped(cache)
