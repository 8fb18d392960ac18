from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.errors import CacheUnavailable
from feedd.values import ShardFile
from feedd.workers.request_split import file_messages
from feedd.workers.shard_bytes import Shard, Shards
from tests.fakes.tars import shard_file

if TYPE_CHECKING:
    from pathlib import Path

DATA = os.urandom(1 << 20)


def test_small_and_large_reads_see_the_same_bytes(tmp_path: Path) -> None:
    """Copied and mapped reads give the object's bytes, cut at its end, never bytes of the file around it."""
    file = shard_file(tmp_path / "x", DATA, data_at=8192)
    with (tmp_path / "x").open("ab") as grown:
        grown.write(b"not of the object")
    with Shard(file_messages((file,))[0][0]) as shard:
        for start, size in (
            (0, 10),
            (12345, 1000),
            (5, 300_000),
            (len(DATA) - 5, 50),
            (len(DATA), 1),
            (7, 0),
            (1 << 40, 9),
        ):
            assert bytes(shard.read(start, size)) == DATA[start : start + size]
        assert bytes(shard.whole()) == DATA


def test_empty_objects_have_no_bytes(tmp_path: Path) -> None:
    """A shard of zero bytes can be opened and has nothing to read."""
    with Shard(file_messages((shard_file(tmp_path / "x", b""),))[0][0]) as shard:
        assert (bytes(shard.whole()), bytes(shard.read(0, 10))) == (b"", b"")


def test_a_file_that_shrinks_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """A cache file cut while it is in use gives CacheUnavailable for samples beyond the cut."""
    file = shard_file(tmp_path / "x", DATA, data_at=4096)
    with Shard(file_messages((file,))[0][0]) as shard:
        os.truncate(file.path, 4096 + 1000)
        assert bytes(shard.read(0, 500)) == DATA[:500]
        for start, size in ((900, 200), (5000, 10), (0, 300_000)):
            with pytest.raises(CacheUnavailable, match="s3://bucket/x"):
                shard.read(start, size)


def test_files_are_opened_when_read_and_one_that_is_gone_says_so(tmp_path: Path) -> None:
    """Where one file of a task is gone, the others can be read, and it is an error that names it."""
    good = shard_file(tmp_path / "x", DATA)
    gone = ShardFile(good.ref, str(tmp_path / "gone"), 0)
    with Shards([file_messages((good,))[0][0], file_messages((gone,))[0][0]]) as shards:
        assert bytes(shards[0].read(0, 10)) == DATA[:10]
        with pytest.raises(CacheUnavailable, match="gone"):
            shards[1]
