"""A pack in the cache that says it lacks objects, and cannot be understood: the cache's trouble, not a defect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.catalog.lost_objects import LostObjects
from feedd.dataset.pack_layout import TAG, Table
from feedd.errors import CacheUnavailable
from feedd.values import ObjectRef, ShardFile

if TYPE_CHECKING:
    from pathlib import Path


def _pack(path: Path, keys: bytes) -> ShardFile:
    """Write a pack of one object, which is lost."""
    table = Table(np.array([3]), np.array([0]), np.array([len(keys)]), keys, lost=(0,))
    data = table.render() + b"\0\0\0"
    path.write_bytes(data)
    return ShardFile(ObjectRef("s3://bucket", "a.jpg+0", len(data), TAG + "00"), str(path), 0)


@pytest.mark.parametrize("gone", [False, True])
async def test_what_cannot_be_understood_names_the_pack(tmp_path: Path, *, gone: bool) -> None:
    """Keys that are no text, and a file that is gone, among packs that are whole."""
    whole, damaged = _pack(tmp_path / "whole", b"a.jpg"), _pack(tmp_path / "damaged", b"\xff.jpg")
    if gone:
        (tmp_path / "damaged").unlink()
    with pytest.raises(CacheUnavailable) as caught:
        await LostObjects().without([], [whole, damaged])
    assert caught.value.object == damaged.ref.url
