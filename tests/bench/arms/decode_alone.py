"""Arm: the decode function and nothing else, in as many processes, over pictures that lie in memory.

With ``endpoint`` a bare receiver takes the shards from the server meanwhile, onto tmpfs, which is the least that
anybody does whose cache is empty: no signatures, checksums, cache, batches or trainer.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd.bench.ingest.arms.job import Job
from feedd.bench.ingest.arms.splice_arm import take
from feedd.bench.procs import tree_cpu_s
from tests.bench.arms.consume import read_settings, touch
from tests.bench.arms.decoder import decoder

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

_WARMING_UP = 64
_PART_BYTES = 8 << 20
_CONNECTIONS = 2


def _pictures(folder: str, number: int, of: int) -> list[bytes]:
    """Return a process's share of the pictures."""
    found = []
    for path in sorted(Path(folder).iterdir())[number::of]:
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".jpg") else None
                if file is not None:
                    found.append(file.read())
    return found


def _decode(settings: dict[str, Any], number: int, barrier: Barrier) -> None:
    decode = decoder(settings)
    pictures = _pictures(settings["folder"], number, settings["workers"])
    for picture in pictures[:_WARMING_UP]:
        decode(picture)
    barrier.wait()
    for picture in pictures:
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
    """Run: the slowest process ends the time that is measured."""
    settings = read_settings()
    touch(settings.get("touched_bytes", 0))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(settings["workers"] + 1)
    processes = [
        context.Process(target=_decode, args=(settings, number, barrier)) for number in range(settings["workers"])
    ]
    for process in processes:
        process.start()
    barrier.wait()
    cpu_s, begin_s = tree_cpu_s(), time.perf_counter()
    if settings.get("endpoint"):
        _receive(settings)
    barrier.wait()
    wall_s, cpu_s = time.perf_counter() - begin_s, tree_cpu_s() - cpu_s
    for process in processes:
        process.join()
    samples = settings["sample_count"]
    row = {"samples": samples, "samples_per_s": samples / wall_s, "cpu_ms_per_sample": 1000 * cpu_s / samples}
    sys.stdout.write("\n" + json.dumps(row | {"epoch_s": wall_s}) + "\n")


if __name__ == "__main__":
    main()
