from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.errors import CacheUnavailable
from feedd.formats.tar import TarFormat
from feedd.values import ShardFile
from feedd.workers import index_columns
from feedd.workers.calls import file_messages
from feedd.workers.executor import Executor
from feedd.workers.messages import Indexed, IndexRequest
from feedd.workers.shards import Shard, ShardHeaders, Shards
from tests.fakes.tars import shard_file, tar_bytes

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


def test_headers_are_the_objects_bytes_wherever_they_are_read(tmp_path: Path) -> None:
    """Slices near and far, short and long, in any order and beyond the end, are those of the object."""
    file = shard_file(tmp_path / "x", DATA, data_at=8192)
    with (tmp_path / "x").open("ab") as grown:
        grown.write(b"not of the object")
    with Shard(file_messages((file,))[0][0]) as shard:
        headers = ShardHeaders(shard)
        assert len(headers) == len(DATA)
        for start, size in (
            (0, 512),
            (512, 512),
            (2000, 512),
            (100_000, 512),
            (100_600, 200_000),
            (50, 9),
            (len(DATA) - 100, 512),
            (len(DATA) - 600, 512),
            (len(DATA), 512),
            (len(DATA) + 5000, 512),
        ):
            assert headers[start : start + size] == DATA[start : start + size]
        assert headers[:64] == DATA[:64]
        assert headers[len(DATA) - 9 :] == DATA[-9:]


@pytest.mark.parametrize("member_bytes", [0, 700, 5000, 90_000])
def test_a_tar_is_indexed_without_mapping_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member_bytes: int
) -> None:
    """Whether its headers are near each other or not, its index is that of the whole bytes."""
    data = tar_bytes((f"{number:04d}", {"jpg": bytes(member_bytes)}) for number in range(60))
    file = shard_file(tmp_path / "x", data, data_at=4096)
    whole = TarFormat().index(memoryview(data), file.ref.url)
    monkeypatch.setattr("feedd.workers.shards.Shard.whole", None)
    answer, fds = Executor().run(IndexRequest(1, file_messages((file,))[0][0], "tar"))
    assert isinstance(answer, Indexed)
    index = index_columns.unpack(fds[0], answer)
    os.close(fds[0])
    assert index.starts.tolist() == whole.starts.tolist()
    assert index.sizes.tolist() == whole.sizes.tolist()
    assert index.sample_count == 60
