"""The pictures of the epoch benches, in every contender's own format, in one folder the S3 server serves.

Made once and kept in ``$FEEDD_BENCH_DATA``, else in the folder for temporary files.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import subprocess
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.peers import ROOT
from tests.bench.pictures import jpeg

if TYPE_CHECKING:
    from tests.bench.peers import Peers

BUCKET = "bench"
_LAYOUT_VERSION = 2  # changes whenever pictures or layout do, so that an old folder is never taken for a new one
PEER_WRITERS = {"mds": "tests.bench.arms.write_mds", "litdata": "tests.bench.arms.write_litdata"}


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the data set is. Shards have equal counts, so that whole shards split evenly over workers.

    Attributes:
        shard_count: tar shards.
        shard_samples: samples of each.
        shard_limit_bytes: size limit given to the peers' writers, above the size of every tar shard.
    """

    shard_count: int
    shard_samples: int
    shard_limit_bytes: int

    @property
    def sample_count(self) -> int:
        """Samples in all."""
        return self.shard_count * self.shard_samples


FULL = Shape(shard_count=8, shard_samples=1152, shard_limit_bytes=64_000_000)
LONG = Shape(shard_count=16, shard_samples=2048, shard_limit_bytes=113_000_000)
QUICK = Shape(shard_count=8, shard_samples=256, shard_limit_bytes=16_000_000)


@dataclass(frozen=True, slots=True)
class Data:
    """The data set on disk.

    Attributes:
        root: folder to serve; ``root/bench/<format>/`` holds each format.
        shape: its size.
        formats: those that are there.
    """

    root: Path
    shape: Shape
    formats: tuple[str, ...]

    def size_bytes(self, form: str) -> int:
        """Bytes of one format."""
        return sum(path.stat().st_size for path in (self.root / BUCKET / form).iterdir())

    def shard_urls(self, base: str) -> str:
        """Return the tar shards as a brace pattern below ``base``."""
        return f"{base}/tar/shard-{{{0:06d}..{self.shape.shard_count - 1:06d}}}.tar"


def _write_tar(folder: str, shard_index: int, shape: Shape) -> None:
    with tarfile.open(f"{folder}/shard-{shard_index:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(shard_index * shape.shard_samples, (shard_index + 1) * shape.shard_samples):
            for extension, content in (("jpg", jpeg(0, index)), ("cls", str(index).encode())):
                member = tarfile.TarInfo(f"{index:08d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _make_tars(folder: Path, shape: Shape) -> None:
    # spawned: the parent may run threads; two, since that is what the smallest machine has
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_write_tar, str(folder), index, shape) for index in range(shape.shard_count)]
        for job in jobs:
            job.result()


def make_peer_format(form: str, source: Path, target: Path, limit_bytes: int, peers: Peers) -> None:
    """Write the samples of the tar shards in ``source`` in a peer's own format, with shards of that many bytes."""
    settings = {"source": str(source), "target": str(target), "limit_bytes": limit_bytes}
    subprocess.run(
        [peers.python, "-m", PEER_WRITERS[form], json.dumps(settings)],
        cwd=ROOT,
        env={**os.environ, **peers.environment},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def data_folder() -> Path:
    """Return the folder that holds the data of all benches."""
    return Path(os.environ.get("FEEDD_BENCH_DATA", str(Path(tempfile.gettempdir()) / "feedd-bench-data")))


def prepare(shape: Shape, peers: Peers | None) -> Data:
    """Return the data set, making what is missing of it."""
    name = "-".join(str(value) for value in (_LAYOUT_VERSION, *asdict(shape).values()))
    root = data_folder() / name
    wanted = ("tar", *PEER_WRITERS) if peers else ("tar",)
    for form in wanted:
        target = root / BUCKET / form
        if target.exists():
            continue
        partial = root / f"partial-{form}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if form == "tar":
            _make_tars(partial, shape)
        elif peers is not None:
            make_peer_format(form, root / BUCKET / "tar", partial, shape.shard_limit_bytes, peers)
        target.parent.mkdir(exist_ok=True)
        partial.rename(target)  # only a whole format ever has its final name
    return Data(root, shape, wanted)
