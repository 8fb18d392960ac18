"""Compressed shards, from S3 through a real daemon to tensors."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from functools import partial
from typing import TYPE_CHECKING

import brotli
import cramjam
import pytest
import torch
import zstandard

from feedd_client import BadRequestError, DatasetChanged, FeedDataset, FeedError
from tests.e2e.shards import numbered
from tests.e2e.test_warm import Command
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": lambda data: gzip.compress(data[:7000]) + gzip.compress(data[7000:]),
    "tgz": gzip.compress,
    "tar.zst": zstandard.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.br": partial(brotli.compress, quality=4),
    "tar.snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
FIELDS = {"jpg": "image:32x32:random", "cls": "int"}


def _epochs(daemon: Daemon, kind: str, epochs: int) -> list[list[dict[str, torch.Tensor]]]:
    dataset = FeedDataset(
        f"s3://data/{kind}/", batch_size=7, fields=FIELDS, shuffle=True, seed=3, address=daemon.address, copy=True
    )
    taken = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        taken.append(list(dataset))
    return taken


def test_compressed_shards_give_the_same_batches(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """However the same shards are packed, batches are equal; the second epoch fetches nothing."""
    for kind, pack in PACKED.items():
        for shard in range(4):
            s3.put("data", f"{kind}/{shard:03d}.{kind}", pack(numbered(shard, 10)))
    daemon = daemons(workers=2)
    expected = _epochs(daemon, "tar", 2)
    for kind in PACKED:
        first = _epochs(daemon, kind, 1)
        fetched_bytes = daemon.metrics()["feedd_source_bytes_total"]
        both = _epochs(daemon, kind, 2)
        assert daemon.metrics()["feedd_source_bytes_total"] == fetched_bytes
        for taken, wanted in ((first, expected[:1]), (both, expected)):
            for batches, others in zip(taken, wanted, strict=True):
                for batch, other in zip(batches, others, strict=True):
                    assert torch.equal(batch["jpg"], other["jpg"]), kind
                    assert torch.equal(batch["cls"], other["cls"]), kind
    daemon.wait_idle(sessions=0)
    assert daemon.metrics()["feedd_pipeline_made_shards_total"] == 4 * (len(PACKED) - 1)


def _labels(daemon: Daemon, url: str) -> list[list[int]]:
    dataset = FeedDataset(url, batch_size=5, fields={"cls": "int"}, address=daemon.address, copy=True)
    return [batch["cls"].tolist() for batch in dataset]


@pytest.mark.nightly
def test_kills_while_shards_are_made(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A worker killed while it makes a shard costs nothing, nor does the daemon's death."""
    for shard in range(8):
        s3.put("data", f"k/{shard:03d}.tar.xz", lzma.compress(numbered(shard, 20, pad_bytes=60_000)))
    daemon = daemons(workers=2)
    got = []
    dataset = FeedDataset("s3://data/k/", batch_size=5, fields={"cls": "int"}, address=daemon.address, copy=True)
    for step, batch in enumerate(dataset):
        got.append(batch["cls"].tolist())
        if step == 2:
            daemon.decode_workers()[0].kill()
    expected = [[shard * 1000 + n for n in range(at, at + 5)] for shard in range(8) for at in range(0, 20, 5)]
    assert got == expected
    del dataset, batch
    daemon.wait_idle()
    daemon.kill()
    daemon.start()
    assert _labels(daemon, "s3://data/k/") == expected
    assert daemon.metrics().get("feedd_source_bytes_total", 0) == 0, "what was made did not survive"
    daemon.wait_idle()
    assert daemon.stop() == 0


def test_broken_objects(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A cut object is told by its name and where it ends; one packed otherwise by what to do."""
    s3.put("data", "b/000.tar.gz", gzip.compress(numbered(0, 5))[:-30])
    s3.put("data", "l/000.tar.lz4", b"\x04\x22\x4d\x18" + bytes(100))
    daemon = daemons()
    with pytest.raises(FeedError, match=r"expected the end of the stream.*b/000\.tar\.gz"):
        _labels(daemon, "s3://data/b/")
    with pytest.raises(BadRequestError, match="compress it with gzip"):
        _labels(daemon, "s3://data/l/")
    daemon.wait_idle()


def test_an_object_that_changes_under_a_run(s3: S3Server, daemons: Callable[..., Daemon], short_dir: Path) -> None:
    """What was made of the old version is not mixed with the new one: that is an error, as for any other shard."""
    s3.put("data", "n/000.tar.gz", gzip.compress(numbered(0, 40)))
    daemon = daemons(name="own")
    dataset = FeedDataset("s3://data/n/", batch_size=5, fields={"cls": "int"}, address=daemon.address, copy=True)
    assert len(list(dataset)) == 8
    daemon.wait_idle(sessions=1)
    s3.put("data", "n/000.tar.gz", gzip.compress(numbered(1, 5)))
    assert Command(short_dir / "own", s3.url).run("rm", "--all", "--yes").returncode == 0
    with pytest.raises(DatasetChanged):
        list(dataset)  # its first two batches were decoded ahead
    del dataset
    assert _labels(daemon, "s3://data/n/") == [[1000, 1001, 1002, 1003, 1004]]


def test_commands_of_the_cache(s3: S3Server, daemons: Callable[..., Daemon], short_dir: Path) -> None:
    """Made shards are warmed, listed by what they are made of, and removed, with a daemon and without."""
    home = short_dir / "own"
    home.mkdir()
    for shard in range(3):
        s3.put("data", f"c/{shard:03d}.tar.zst", zstandard.compress(numbered(shard, 10)))
    url = "s3://data/c/"
    command = Command(home, s3.url)
    done = command.run("warm", url)
    assert done.returncode == 0, done.stderr
    assert "3 warmed" in done.stderr
    listed = json.loads(command.run("ls", "--json").stdout)
    assert [(row["conversion"], row["size_bytes"]) for row in listed] == [("unzstd", len(numbered(0, 10)))] * 3
    assert "(unzstd)" in command.run("ls").stdout.replace("\n", "")
    again = command.run("warm", url)
    assert "3 there before" in again.stderr
    removed = command.run("rm", f"{url}000*", "--yes")
    assert removed.stdout.startswith("removed 1 object")
    daemon = daemons(name="own")
    assert len(json.loads(command.run("ls", "--json").stdout)) == 2
    assert "1 warmed" in command.run("warm", url).stderr
    assert _labels(daemon, url)[0] == [0, 1, 2, 3, 4]
    daemon.wait_idle()
    removed = command.run("rm", "--all", "--yes")
    assert removed.stdout.startswith("removed 3 objects")
    assert json.loads(command.run("ls", "--json").stdout) == []


def test_packed_tables_and_lines(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """CSV, MDS and JSON Lines, packed, give what they give unpacked; of tables only the named columns are made."""
    table = b"a,b\n" + b"".join(b"%d,text %d\n" % (n, n) for n in range(10))
    rows = [{"label": torch.tensor(n).numpy().tobytes(), "text": b"t%d" % n} for n in range(3)]
    s3.put("data", "p/0.csv.gz", gzip.compress(table))
    s3.put("data", "p/1.csv.zst", zstandard.compress(table))
    s3.put("data", "p/2.csv", table)
    s3.put("data", "m/shard.00000.mds.zstd", zstandard.compress(mds({"label": "int", "text": "str"}, rows)))
    s3.put("data", "j/a.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": [2]}\n'))
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/p/", batch_size=30, fields={"a": "int"}, address=daemon.address, copy=True)
    assert batch["a"].tolist() == [*range(10)] * 3
    (batch,) = FeedDataset("s3://data/p/", batch_size=30, fields={"b": "str"}, address=daemon.address, copy=True)
    assert list(batch["b"]) == [f"text {n}" for n in range(10)] * 3
    (batch,) = FeedDataset("s3://data/m/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert (batch["label"].tolist(), list(batch["text"])) == ([0, 1, 2], ["t0", "t1", "t2"])
    (batch,) = FeedDataset("s3://data/j/", batch_size=4, fields=None, address=daemon.address, copy=True)
    assert list(batch["json"]) == [{"a": 1}, {"a": [2]}]
    daemon.wait_idle()


def test_packed_text_is_fetched_once(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Its first shard tells the types of all, and is not fetched again to be read; nor is it by a later daemon."""
    size_bytes = 0
    for shard in range(3):
        rows = "".join(f"{number},{number * 0.5}\n" for number in range(shard * 50, shard * 50 + 50))
        data = gzip.compress(f"n,half\n{rows}".encode())
        s3.put("data", f"csv/{shard}.csv.gz", data)
        size_bytes += len(data)
    daemon = daemons(name="own")
    for fetched_bytes in (size_bytes, 0):
        batches = FeedDataset("s3://data/csv/", batch_size=10, fields=None, address=daemon.address, copy=True)
        found = [pair for batch in batches for pair in zip(batch["n"].tolist(), batch["half"].tolist(), strict=True)]
        assert found == [(number, number * 0.5) for number in range(150)]
        assert daemon.metrics().get("feedd_source_bytes_total", 0) == fetched_bytes
        daemon.stop()
        daemon.start()
