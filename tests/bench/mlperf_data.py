"""The data of the bench ``mlperf``: random records in tar shards and the peers' formats, and large arrays.

Made once, beside the other benches' data; see ``dataset``.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.bench.dataset import BUCKET, PEER_WRITERS, Data, Shape, data_folder, make_peer_format

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.peers import Peers

RECORD_BYTES: Final = 114_660
VOLUME_BYTES: Final = 146_600_628
VOLUMES: Final = "npy"
_VERSION: Final = 1  # changes whenever the bytes or the layout do
_MEMBER_BYTES: Final = 4096  # at most, of a record's headers and its label in a tar file


def prepare_records(shard_count: int, shard_records: int, peers: Peers | None) -> Data:
    """Return records in tar shards, as ``.jpg`` and ``.cls``, and in the peers' formats; make what is missing."""
    shape = Shape(shard_count, shard_records, shard_records * (RECORD_BYTES + _MEMBER_BYTES))
    root = data_folder() / f"mlperf-records-{_VERSION}-{shard_count}x{shard_records}"
    wanted = ("tar", *PEER_WRITERS) if peers else ("tar",)
    for form in wanted:
        target = root / BUCKET / form
        if target.exists():
            continue
        partial = root / f"partial-{form}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if form == "tar":
            for number in range(shard_count):
                _write_shard(partial, number, shard_records)
        elif peers is not None:
            make_peer_format(form, root / BUCKET / "tar", partial, shape.shard_limit_bytes, peers)
        target.parent.mkdir(exist_ok=True)
        partial.rename(target)  # only a whole format ever has its final name
    return Data(root, shape, wanted)


def _write_shard(folder: Path, number: int, record_count: int) -> None:
    draws = np.random.default_rng(number)
    with tarfile.open(folder / f"shard-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(number * record_count, (number + 1) * record_count):
            for extension, content in (("jpg", draws.bytes(RECORD_BYTES)), ("cls", str(index).encode())):
                member = tarfile.TarInfo(f"{index:08d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def prepare_volumes(count: int, size_bytes: int) -> Path:
    """Return the folder to serve, with ``count`` objects of one array each; make what is missing.

    All are links to one file. A store's memory then holds one array, and the machine has room for the contenders.
    """
    root = data_folder() / f"mlperf-volumes-{_VERSION}-{count}x{size_bytes}"
    target = root / BUCKET / VOLUMES
    if not target.exists():
        partial = root / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        first = partial / f"{0:08d}.npy"
        np.save(first, np.frombuffer(np.random.default_rng(0).bytes(size_bytes), np.uint8))
        for number in range(1, count):
            os.link(first, partial / f"{number:08d}.npy")
        target.parent.mkdir(exist_ok=True)
        partial.rename(target)
    return root
