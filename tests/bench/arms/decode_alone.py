"""Arm: the decode function and nothing else, in as many processes, over pictures that lie in memory.

With ``endpoint`` a bare receiver takes the shards from the server meanwhile, onto tmpfs, which is the least that
anybody does whose cache is empty: no signatures, checksums, cache, batches or trainer.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import sys
import tarfile
import tempfile
import time
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.arms.consume import read_settings, touch
from tests.bench.arms.decoder import decoder
from tests.bench.ingest.arms.job import Job
from tests.bench.ingest.arms.splice_arm import take
from tests.bench.procs import stolen_s, tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Barrier

_WARMING_UP = 64
_PORTION = 16  # pictures taken at a time
_MADV_POPULATE_READ = 22  # which the module has no name for
_PART_BYTES = 8 << 20
_CONNECTIONS = 2


class _Pictures:
    """All pictures in memory that forked processes share, and how many of them have been taken."""

    def __init__(self, folder: str) -> None:
        paths = sorted(Path(folder).iterdir())
        self._data = mmap.mmap(-1, sum(path.stat().st_size for path in paths))
        sizes: list[int] = []
        for path in paths:
            with tarfile.open(path) as tar:
                files = (tar.extractfile(member) for member in tar if member.name.endswith(".jpg"))
                # one at a time: gigabytes that were free again now would be taken back while it is measured
                sizes += [self._data.write(file.read()) for file in files if file is not None]
        self._ends = [0, *accumulate(sizes)]
        self._taken = multiprocessing.Value("q", 0)

    def first(self, count: int) -> Iterator[memoryview]:
        """Yield some, and take none."""
        return map(self._picture, range(count))

    def take(self) -> Iterator[memoryview]:
        """Yield those that nobody has taken yet: whoever is quicker decodes more, as feedd's workers do."""
        count = len(self._ends) - 1
        while True:
            with self._taken.get_lock():
                begin = self._taken.value
                self._taken.value = end = min(begin + _PORTION, count)
            if begin == end:
                return
            yield from map(self._picture, range(begin, end))

    def touch(self) -> None:
        """Map all pages: a process has to after it was forked."""
        self._data.madvise(_MADV_POPULATE_READ)

    def _picture(self, number: int) -> memoryview:
        return memoryview(self._data)[self._ends[number] : self._ends[number + 1]]


def _decode(settings: dict[str, Any], pictures: _Pictures, barrier: Barrier) -> None:
    decode = decoder(settings)
    pictures.touch()
    for picture in pictures.first(_WARMING_UP):
        decode(picture)
    barrier.wait()
    for picture in pictures.take():
        decode(picture)
    barrier.wait()


def _receive(settings: dict[str, Any]) -> None:
    folder = Path(settings["folder"])
    objects = tuple((f"{folder.name}/{path.name}", path.stat().st_size) for path in sorted(folder.iterdir()))
    with tempfile.TemporaryDirectory(prefix="feedd-bench-", dir="/dev/shm") as target:
        job = Job(
            settings["endpoint"],
            "us-east-1",
            settings["bucket"],
            objects,
            Path(target),
            _CONNECTIONS,
            _PART_BYTES,
            ca_file="",
            recycled=False,
            own={},
        )
        job.write_in_threads(partial(take, job))


def main() -> None:
    """Run: from when all processes are ready to when all pictures are decoded."""
    settings = read_settings()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(settings["workers"] + 1)
    pictures = _Pictures(settings["folder"])
    processes = [
        context.Process(target=_decode, args=(settings, pictures, barrier)) for _ in range(settings["workers"])
    ]
    for process in processes:
        process.start()
    touch(settings.get("touched_bytes", 0))
    barrier.wait()
    cpu_s, taken_s, begin_s = tree_cpu_s(), stolen_s(), time.perf_counter()
    if settings.get("endpoint"):
        _receive(settings)
    barrier.wait()
    wall_s, cpu_s, taken_s = time.perf_counter() - begin_s, tree_cpu_s() - cpu_s, stolen_s() - taken_s
    for process in processes:
        process.join()
    samples = settings["sample_count"]
    row = {"samples": samples, "samples_per_s": samples / wall_s, "cpu_ms_per_sample": 1000 * cpu_s / samples}
    row |= {"stolen_ms_per_sample": 1000 * taken_s / samples, "epoch_s": wall_s}
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
