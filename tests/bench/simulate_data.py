"""The data of the bench ``simulate``: the same pictures in shards of three sizes, counted by ``feedd index``."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Final

from tests.bench.dataset import data_folder
from tests.bench.peers import ROOT
from tests.bench.pictures import jpeg
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from pathlib import Path

BUCKET: Final = "simulate"
SAMPLES: Final = 1536
SHARDS: Final = {"large": 6, "middle": 24, "small": 96}
"""Shards of each data set."""
_VERSION: Final = 1


def prepare() -> Path:
    """Return the folder to serve; make it first if it is missing."""
    root = data_folder() / f"simulate-{_VERSION}"
    if root.exists():
        return root
    partial = root.with_name(root.name + "-partial")
    shutil.rmtree(partial, ignore_errors=True)
    pictures = [jpeg(0, index) for index in range(SAMPLES)]
    for name, count in SHARDS.items():
        folder = partial / BUCKET / name
        folder.mkdir(parents=True)
        each = SAMPLES // count
        for shard in range(count):
            with tarfile.open(folder / f"{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for index in range(shard * each, (shard + 1) * each):
                    member = tarfile.TarInfo(f"{index:08d}.jpg")
                    member.size = len(pictures[index])
                    tar.addfile(member, io.BytesIO(pictures[index]))
    with BenchServer(partial) as server:
        for name in SHARDS:
            command = [sys.executable, "-m", "feedd", "index", f"s3://{BUCKET}/{name}/"]
            subprocess.run(command, cwd=ROOT, env={**os.environ, **server.environment}, check=True)
    partial.rename(root)
    return root


def sizes(root: Path, name: str) -> list[int]:
    """Return the bytes of each shard of a data set, in order of the keys."""
    return [path.stat().st_size for path in sorted((root / BUCKET / name).glob("*.tar"))]
