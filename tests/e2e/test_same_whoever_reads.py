"""A run that is resumed, opened for one epoch alone, or split over nodes takes what an uninterrupted one takes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from feedd_client import BadRequestError, FeedDataset, FeedError, Shuffle, Topology
from tests.budget import later
from tests.e2e.shards import tar
from tests.fakes.files import parquet_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(180)]

SHARDS = 6


def columns(s3: S3Server) -> None:
    """Store two rows a file, whole numbers, but in one file."""
    for shard in range(SHARDS):
        kind = pa.float64() if shard == 3 else pa.int64()
        s3.put("data", f"columns/{shard}.parquet", parquet_of(a=pa.array([shard * 10, shard * 10 + 1], kind)))


def arrays(s3: S3Server) -> None:
    """Store two arrays a shard, of one type, but in one shard."""
    for shard in range(SHARDS):
        samples = []
        for number in range(2):
            sink = io.BytesIO()
            np.save(sink, np.full(1, shard * 10 + number, np.float64 if shard == 2 else np.float32))
            samples.append((f"{shard}{number}", {"a.npy": sink.getvalue()}))
        s3.put("data", f"arrays/{shard}.tar", tar(samples))


CASES: dict[str, tuple[Callable[[S3Server], None], dict[str, str] | None]] = {
    "columns": (columns, {"a": "float"}),
    "columns, nothing named": (columns, None),
    "arrays": (arrays, {"a.npy": "npy"}),
    "arrays, nothing named": (arrays, None),
}


def dataset(daemon: Daemon, prefix: str, fields: dict[str, str] | None, **options: Any) -> FeedDataset:
    """Return a dataset of batches of two, bad samples left out."""
    asked: dict[str, Any] = {"shuffle": Shuffle(window_shards=1), "uneven": "allow", "bad_samples": "skip"} | options
    return FeedDataset(f"s3://data/{prefix}/", batch_size=2, fields=fields, address=daemon.address, copy=True, **asked)


def taken(batch: Any) -> list[int]:
    """Return what a batch holds."""
    (values,) = (value for name, value in batch.items() if not name.startswith("__"))
    rows = values if isinstance(values, list) else list(values)
    return [int(np.asarray(row).reshape(-1)[0]) for row in rows]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_resumes_and_epochs_alone_take_the_same(s3: S3Server, daemons: Callable[..., Daemon], name: str) -> None:
    """By another daemon, that begins where others are read first: every batch is what it would have been."""
    store, fields = CASES[name]
    store(s3)
    prefix = store.__name__
    first, other = daemons("first"), daemons("other")
    for seed in range(4):
        whole: list[list[list[int]]] = []
        states = []
        running = dataset(first, prefix, fields, seed=seed)
        for epoch in range(2):
            running.set_epoch(epoch)
            whole.append([])
            for batch in running:
                whole[-1].append(taken(batch))
                states.append((epoch, len(whole[-1]), running.state_dict()))
        assert [sum(map(len, one)) for one in whole] == [10, 10]
        for epoch in range(2):
            alone = dataset(other, prefix, fields, seed=seed)
            alone.set_epoch(epoch)
            assert [taken(batch) for batch in alone] == whole[epoch], (seed, epoch)
        for epoch, count, state in states[::3]:
            resumed = dataset(other, prefix, fields, seed=seed)
            resumed.load_state_dict(state)
            resumed.set_epoch(epoch)
            assert [taken(batch) for batch in resumed] == whole[epoch][count:], (seed, epoch, count)


@pytest.mark.parametrize("name", [later(name) if name == "arrays" else name for name in CASES])
def test_nodes_together_take_what_one_takes(s3: S3Server, daemons: Callable[..., Daemon], name: str) -> None:
    """Six nodes of a shard each, one of which reads nothing but what the others' type makes bad."""
    store, fields = CASES[name]
    store(s3)
    prefix = store.__name__
    daemon = daemons()
    alone = sorted(one for batch in dataset(daemon, prefix, fields, shuffle=False) for one in taken(batch))
    each = [
        dataset(daemon, prefix, fields, shuffle=False, topology=Topology(SHARDS, node, 1, 0, SHARDS, node))
        for node in range(SHARDS)
    ]
    assert sorted(one for node in each for batch in node for one in taken(batch)) == alone
    assert len(alone) == 10
    assert sum(node.stats()["bad_samples"] for node in each) == 2


def test_shards_that_lack_a_column(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Empty ones first, then one without it: its rows are bad samples, named; what no shard has is refused at open."""
    s3.put("data", "lack/0.parquet", parquet_of(a=pa.array([], pa.int64())))
    s3.put("data", "lack/1.parquet", parquet_of(a=[1, 2]))
    s3.put("data", "lack/2.parquet", parquet_of(b=[5, 5]))
    s3.put("data", "lack/3.parquet", parquet_of(a=[3, 4]))
    daemon = daemons()
    found = dataset(daemon, "lack", {"a": "int"}, shuffle=False)
    assert [one for batch in found for one in taken(batch)] == [1, 2, 3, 4]
    assert found.stats()["bad_samples"] == 2
    with pytest.raises(FeedError, match=r"sample '00000000', field 'a': .*lack/2.parquet"):
        list(dataset(daemon, "lack", {"a": "int"}, shuffle=False, bad_samples="error"))
    with pytest.raises(BadRequestError, match=r"expected the name of a column, got c.*there are a"):
        list(dataset(daemon, "lack", {"c": "int"}, shuffle=False))


def test_a_bad_first_array_ends_nothing(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The next one tells what they hold; where it is to be an error, it is named with what to do."""
    sink = io.BytesIO()
    np.save(sink, np.zeros(3, np.int16))
    s3.put("data", "bad/0.tar", tar([("k1", {"npy": b"broken"}), ("k2", {"npy": sink.getvalue()})]))
    daemon = daemons()
    for policy in ("skip", "replace", "quarantine"):
        found = dataset(daemon, "bad", {"npy": "npy"}, shuffle=False, bad_samples=policy)
        assert sum(len(batch["npy"]) for batch in found) == (2 if policy == "replace" else 1)
    with pytest.raises(FeedError, match=r"sample 'k1' \(number 0\), field 'npy'.*bad/0.tar.*npy:float32:3,4"):
        list(dataset(daemon, "bad", {"npy": "npy"}, shuffle=False, bad_samples="error"))
