"""A cache directory that vanishes under a running daemon costs speed only, for the running job and for later ones."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SHARDS, PER_SHARD, BATCH = 16, 8, 8
_SEEN_S = 1.5  # a file that was seen a second ago is assumed to be there
LABELS = sorted(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD))


def _mount(stack: ExitStack, path: Path, options: str = "mode=0700") -> None:
    """Mount a small file system at a path until the stack is closed; skip where this user may not."""
    options = f"size=64m,{options}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    stack.callback(subprocess.run, ["umount", "-l", str(path)], check=False, capture_output=True)


def _removed(cache: Path, _: ExitStack) -> None:
    shutil.rmtree(cache)


def _moved(cache: Path, _: ExitStack) -> None:
    cache.rename(cache.with_name("moved"))


def _emptied(cache: Path, _: ExitStack) -> None:
    subprocess.run(["find", str(cache), "-mindepth", "1", "-delete"], check=False, capture_output=True)


def _partly_deleted(cache: Path, _: ExitStack) -> None:
    for path in sorted(cache.rglob("*.shard"))[::2]:
        path.unlink(missing_ok=True)


def _unmounted(cache: Path, _: ExitStack) -> None:
    subprocess.run(["umount", "-l", str(cache.parent)], check=True)


def _mounted_over(cache: Path, stack: ExitStack) -> None:
    _mount(stack, cache)


def _mounted_over_for_everybody(cache: Path, stack: ExitStack) -> None:
    _mount(stack, cache, "mode=0777")


def _replaced_by_a_file(cache: Path, _: ExitStack) -> None:
    shutil.rmtree(cache)
    cache.write_text("in the way")


def _mounted_over_read_only(cache: Path, stack: ExitStack) -> None:
    _mount(stack, cache, "mode=0700,ro")


WAYS = (
    _removed,
    _moved,
    _emptied,
    _partly_deleted,
    _unmounted,
    _mounted_over,
    _mounted_over_for_everybody,
    _replaced_by_a_file,
    _mounted_over_read_only,
)


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    """The mounts of a test, undone at its end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cache(short_dir: Path, mounts: ExitStack) -> Path:
    """A cache directory on a file system of its own."""
    disk = short_dir / "disk"
    disk.mkdir()
    _mount(mounts, disk)
    return disk / "cache"


def _put(s3: S3Server) -> None:
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard}.tar", numbered(shard, PER_SHARD, pad_bytes=4000))


def _dataset(daemon: Daemon) -> FeedDataset:
    fields = {"cls": "int", "bin": "bytes"}
    return FeedDataset(
        "s3://data/train/", batch_size=BATCH, fields=fields, shuffle=True, seed=3, address=daemon.address
    )


def _labels(batches: Any, change: Callable[[], object] | None = None, at: int = 4) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(batches):
        if number == at and change is not None:
            change()
            time.sleep(_SEEN_S)  # until the cache looks at its files again
        found += batch["cls"].tolist()
    return sorted(found)


def _said(daemon: Daemon) -> Counter[str]:
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return Counter(line["event"] for line in lines if line["level"] in {"warning", "error"})


@pytest.mark.parametrize("vanish", WAYS)
def test_a_cache_that_vanishes_costs_speed_only(
    s3: S3Server,
    daemons: Callable[..., Daemon],
    cache: Path,
    mounts: ExitStack,
    vanish: Callable[[Path, ExitStack], None],
) -> None:
    """The running job and the next get each sample once; the daemon says what happened, and uses a new directory."""
    _put(s3)
    daemon = daemons("vanish", cache_size="32MiB", flags=("--cache-dir", str(cache)))
    dataset = _dataset(daemon)
    assert _labels(dataset) == LABELS
    assert _labels(dataset, lambda: vanish(cache, mounts)) == LABELS
    assert _labels(dataset) == LABELS
    assert _labels(_dataset(daemon), lambda: _partly_deleted(cache, mounts)) == LABELS
    said = _said(daemon)
    assert said["cached shard is corrupt or missing: fetching it again"] == 1
    assert said["the cache directory was removed, moved or replaced: its shards are fetched again"] <= 1
    if vanish in {_removed, _moved, _unmounted, _mounted_over, _emptied}:
        assert list(cache.rglob("*.shard")), "the daemon uses the directory again"
        assert (cache / "lock").exists()
        assert cache.stat().st_mode & 0o777 == 0o700


def test_files_that_go_one_by_one(s3: S3Server, daemons: Callable[..., Daemon], cache: Path, mounts: ExitStack) -> None:
    """A cleaner that removes files and folders all the time, in any order, costs fetches and no sample."""
    _put(s3)
    daemon = daemons("cleaner", cache_size="32MiB", flags=("--cache-dir", str(cache)))
    rng = random.Random(7)
    ways = [_removed, _emptied, _partly_deleted, _moved]

    def clean() -> None:
        shutil.rmtree(cache.with_name("moved"), ignore_errors=True)
        if cache.exists():
            rng.choice(ways)(cache, mounts)

    dataset = _dataset(daemon)
    for _ in range(4):
        found: list[int] = []
        for number, batch in enumerate(dataset):
            if number % 8 == 0:
                clean()
                time.sleep(_SEEN_S)
            found += batch["cls"].tolist()
        assert sorted(found) == LABELS


def test_workers_open_no_shard_by_its_path(s3: S3Server, daemons: Callable[..., Daemon], cache: Path) -> None:
    """A sandboxed worker reads the shards that the daemon gives it, although it may open no file of the cache."""
    _put(s3)
    daemon = daemons("sandbox", cache_size="32MiB", flags=("--cache-dir", str(cache)))
    dataset = _dataset(daemon)
    assert _labels(dataset) == LABELS
    workers = daemon.decode_workers()
    assert workers
    for worker in workers:
        assert str(cache) not in " ".join(worker.cmdline()), "the rules of its sandbox name no cache"
