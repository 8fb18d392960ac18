"""The bench server over files: which keys are objects, and that they come as they lie there."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.fakes.s3.objects import FileObjects, NumberedObjects, numbered_key
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from pathlib import Path


def test_buckets_are_folders_and_objects_files_below_them(tmp_path: Path) -> None:
    """Nothing outside of the root is reached, by whatever name."""
    root = tmp_path / "root"
    objects = FileObjects(root)
    objects.create("bucket")
    (tmp_path / "outside").write_bytes(b"secret")
    (root / "file").write_bytes(b"no bucket")
    objects.put("bucket", "a/b.jpg", b"picture")
    objects.put("bucket", "/absolute", b"inside")
    assert objects.has("bucket")
    assert not any(map(objects.has, ("", ".", "..", "file", "absent", "bucket/a", "x" * 300)))
    assert (root / "bucket/absolute").read_bytes() == b"inside"
    found = objects.find("bucket", "a/b.jpg")
    assert found is not None
    assert (found.size_bytes, objects.find("bucket", "/absolute") is None) == (7, False)
    for key in ("a", "absent", "../../outside", "a/../../../outside", "x" * 300, "nul\0"):
        assert objects.find("bucket", key) is None
    objects.delete("bucket", "/absolute")
    assert not (root / "bucket/absolute").exists()


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1000, 256 << 10, (256 << 10) + 1, 1 << 20])
def test_whatever_their_size_they_come_whole(tmp_path: Path, size: int) -> None:
    """Small ones with their head, large ones behind it; ranges of both, and heads without a body."""
    data = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "key").write_bytes(data[:size])
    with S3Server(tmp_path) as server:
        url = f"{server.url}/bucket/key"
        with urllib.request.urlopen(url) as whole:
            assert whole.read() == data[:size]
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as head:
            assert (head.headers["content-length"], head.read()) == (str(size), b"")
        if size:
            ranged = urllib.request.Request(url, headers={"Range": f"bytes={size // 3}-{size - 1}"})
            with urllib.request.urlopen(ranged) as part:
                assert (part.status, part.read()) == (206, data[size // 3 : size])


def test_numbered_objects_are_listed_page_by_page_and_share_their_bytes(tmp_path: Path) -> None:
    """Every object is on one page, in byte order; each has an etag of its own and the file's bytes."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "2500").write_bytes(b"the same")
    objects = NumberedObjects(tmp_path)
    keys: list[str] = []
    more = True
    while more:
        page, more = objects.page("bucket", "train/", keys[-1] if keys else "", 1000)
        keys += [key for key, _ in page]
        assert all(objects.find("bucket", key) == stored for key, stored in page)
        assert len({stored.etag for _, stored in page}) == len(page)
    assert keys == sorted(map(numbered_key, range(2500)))
    assert objects.find("bucket", numbered_key(2500)) is None
    found = objects.find("bucket", numbered_key(7))
    assert found is not None
    assert (found.size_bytes, found.path) == (8, str(tmp_path / "bucket" / "2500"))
    assert (objects.has("bucket"), objects.has("other")) == (True, False)
