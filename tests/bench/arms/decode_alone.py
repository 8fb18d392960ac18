"""Arm: the decode function and nothing else, in as many processes, over pictures that lie in memory."""

from __future__ import annotations

import json
import multiprocessing
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd.bench.procs import tree_cpu_s
from tests.bench.arms.consume import read_settings
from tests.bench.arms.decoder import decoder

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

_WARMING_UP = 64


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


def main() -> None:
    """Run: the slowest process ends the time that is measured."""
    settings = read_settings()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(settings["workers"] + 1)
    processes = [
        context.Process(target=_decode, args=(settings, number, barrier)) for number in range(settings["workers"])
    ]
    for process in processes:
        process.start()
    barrier.wait()
    cpu_s, begin_s = tree_cpu_s(), time.perf_counter()
    barrier.wait()
    wall_s, cpu_s = time.perf_counter() - begin_s, tree_cpu_s() - cpu_s
    for process in processes:
        process.join()
    samples = settings["sample_count"]
    row = {"samples": samples, "samples_per_s": samples / wall_s, "cpu_ms_per_sample": 1000 * cpu_s / samples}
    sys.stdout.write("\n" + json.dumps(row | {"epoch_s": wall_s}) + "\n")


if __name__ == "__main__":
    main()
