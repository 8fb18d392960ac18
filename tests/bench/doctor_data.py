"""The data of the scenarios for ``feedd doctor``, made once; most names of shards lead to the same few files."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

from tests.bench.dataset import data_folder
from tests.bench.pictures import jpeg

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
_PAD_BYTES = 100_000
_PAD_COUNT = 12
_PICTURE_COUNT = 128


def prepare() -> Path:
    """Return the folder to serve, with a bucket for each data set; make it first if it is missing."""
    root = data_folder() / f"doctor-{_VERSION}"
    if root.exists():
        return root
    partial = root.with_name(root.name + "-partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain, pictures, small = _tar(_padded(_PAD_COUNT)), _tar(_shown(_PICTURE_COUNT)), jpeg(0, 0, 20)
    for name, content, suffix, count in (
        ("plain", plain, "tar", 400),
        ("some", plain, "tar", 64),
        ("many", plain, "tar", 8000),
        ("pictures", pictures, "tar", 24),
        ("small", small, "jpg", 20_000),
    ):
        _linked(partial / name, content, suffix, count)
    _linked(partial / "skewed", plain, "tar", 40)
    for number in range(3):
        _sparse(partial / "skewed" / f"shard-{10 + 10 * number:06d}-large.tar", 4, 12_000_000)
    for number in range(6):
        path = partial / "large" / f"shard-{number:06d}.tar"
        path.parent.mkdir(exist_ok=True)
        _sparse(path, 12, 12_000_000)
    partial.rename(root)
    return root


def _padded(count: int) -> list[tuple[str, bytes]]:
    return [
        pair
        for number in range(count)
        for pair in ((f"{number:06d}.bin", bytes([number]) * _PAD_BYTES), (f"{number:06d}.cls", b"%d" % number))
    ]


def _shown(count: int) -> list[tuple[str, bytes]]:
    return [
        pair
        for number in range(count)
        for pair in ((f"{number:06d}.jpg", jpeg(0, number)), (f"{number:06d}.cls", b"%d" % number))
    ]


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _linked(folder: Path, content: bytes, suffix: str, count: int) -> None:
    folder.mkdir(parents=True)
    first = folder / f"shard-{0:06d}.{suffix}"
    first.write_bytes(content)
    for number in range(1, count):
        os.link(first, folder / f"shard-{number:06d}.{suffix}")


def _sparse(path: Path, count: int, size_bytes: int) -> None:
    """Write a tar of samples that are holes in the file."""
    with path.open("wb") as file:
        for number in range(count):
            for name, size, content in ((f"{number:06d}.bin", size_bytes, b""), (f"{number:06d}.cls", 1, b"7")):
                member = tarfile.TarInfo(name)
                member.size = size
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                file.write(content)
                file.seek(-(-size // 512) * 512 - len(content), os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
