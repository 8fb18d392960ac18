"""Arm: what packing has to do at least: read each file, take a SHA-256 of all, and write them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tests.bench.arms.consume import read_settings
from tests.bench.arms.pack import files, measured


def _pack() -> None:
    settings = read_settings()
    target = Path(settings["target"])
    target.mkdir()
    memory = memoryview(bytearray(settings["shard_bytes"] + (32 << 20)))
    digest, at, number = hashlib.sha256(), 0, 0
    found = files(settings["source"])
    for index, (path, _) in enumerate(found):
        fd = os.open(path, os.O_RDONLY)
        at += os.readv(fd, [memory[at:]])
        os.close(fd)
        if at >= settings["shard_bytes"] or index == len(found) - 1:
            digest.update(memory[:at])
            with (target / str(number)).open("wb", buffering=0) as out:
                out.write(memory[:at])
            at, number = 0, number + 1


if __name__ == "__main__":
    measured(_pack)
