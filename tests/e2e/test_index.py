"""``feedd index``: counted once, and every run after that knows its steps before the first shard is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, FeedError, Topology
from tests.budget import PATIENT_S, later
from tests.e2e.shards import numbered
from tests.fakes import forks
from tests.fakes.s3 import faults as fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

COUNTS = [5, 9, 1, 7, 12, 6]
URL = "s3://data/train/"
INDEX = "train/_feedd_index.json"


@pytest.fixture
def filled(s3: S3Server) -> S3Server:
    """Six shards of 40 samples together."""
    for shard, count in enumerate(COUNTS):
        s3.put("data", f"train/{shard:02d}.tar", numbered(shard, count, pad_bytes=100))
    return s3


def _stored(s3: S3Server) -> bytes:
    found = s3._objects.find("data", INDEX)
    assert found is not None
    assert found.data is not None
    return found.data


def _started(
    s3: S3Server, *arguments: str, url: str = URL, forked: bool = True, **environment: str
) -> forks.Running | subprocess.Popen[str]:
    own: Mapping[str, str] = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    words, env = ["index", url, "--json", "--set", "decode.workers=1", *arguments], {**os.environ, **own, **environment}
    if forked:
        return forks.Running(words, env)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "feedd", *words], env=env, stdout=pipe, stderr=pipe, text=True)


def _ended(process: forks.Running | subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    with process:
        said, complained = process.communicate(timeout=PATIENT_S)
        assert process.returncode is not None
        return process.returncode, json.loads(said or "{}"), complained


def _index(s3: S3Server, *arguments: str, url: str = URL) -> tuple[int, dict[str, Any], str]:
    return _ended(_started(s3, *arguments, url=url))


def _dataset(daemon: Daemon, rank: int = 0, **options: Any) -> FeedDataset:
    settings: dict[str, Any] = {"batch_size": 4, "fields": {"cls": "int"}, "shuffle": True}
    topology = Topology(2, rank, 2, rank, 1, 0)
    return FeedDataset(URL, address=daemon.address, topology=topology, **settings | options)


def test_steps_are_known_where_there_is_an_index(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Counted: two ranks have 5 full batches each by themselves, len() says so; filled up it is the same 40 samples."""
    code, facts, said = _index(filled)
    assert (code, facts["samples"], facts["counted"], facts["failed"]) == (0, 40, 6, []), said
    assert facts["counted_bytes"] <= facts["fetched_bytes"], "small shards are fetched whole"
    assert "fetched " in said
    assert json.loads(_stored(filled))["sample_count"] == COUNTS
    daemon = daemons(workers=1)
    datasets = [_dataset(daemon, rank) for rank in range(2)]
    assert [len(dataset) for dataset in datasets] == [5, 5]
    taken = [label for dataset in datasets for batch in dataset for label in batch["cls"].tolist()]
    assert sorted(taken) == [shard * 1000 + n for shard, count in enumerate(COUNTS) for n in range(count)]
    padded = [_dataset(daemon, rank, batch_size=3, uneven="pad", sharding="sample") for rank in range(2)]
    assert [len(dataset) for dataset in padded] == [7, 7]
    marks = [(batch["cls"], batch["__valid__"]) for dataset in padded for batch in dataset]
    assert sum(int(valid.sum()) for _, valid in marks) == 40
    assert sum(len(labels) for labels, _ in marks) == 42
    for dataset in (*datasets, *padded):
        dataset.close()
    del marks
    daemon.wait_idle()


def test_only_what_changed_is_counted_again(filled: S3Server) -> None:
    """A second run reads nothing; a replaced shard is read, and --check tells before that."""
    assert _index(filled)[0] == 0
    before = len(filled.requests)
    code, facts, _ = _index(filled)
    assert (code, facts["counted"], facts["known"]) == (0, 0, 6)
    assert not [one for one in filled.requests[before:] if one.method == "GET" and one.key.endswith(".tar")]
    filled.put("data", "train/03.tar", numbered(3, 2, pad_bytes=100))
    code, facts, said = _index(filled, "--check")
    assert (code, facts["known"]) == (1, 5)
    assert "5 of 6 shards known" in said
    code, facts, _ = _index(filled)
    assert (code, facts["counted"], facts["samples"]) == (0, 1, 35)


def test_a_busy_store_and_a_narrower_url(filled: S3Server) -> None:
    """A refusal of the PUT is tried again; a URL of some of the objects is no folder, and the index stays whole."""
    filled.script("data", INDEX, fault.slow_down(), op="PUT")
    assert _index(filled)[0] == 0
    kept = _stored(filled)
    code, _, said = _index(filled, url=f"{URL}0")
    assert code == 2
    assert "expected a folder" in said
    assert _stored(filled) == kept


def test_a_shard_that_cannot_be_read_is_named(filled: S3Server) -> None:
    """The others are counted and written all the same; the exit code says that something is missing."""
    filled.put("data", "train/04.tar", b"no tar " * 1000)
    code, facts, said = _index(filled)
    assert code == 1
    assert facts["known"] == 5
    assert "train/04.tar" in said
    assert len(json.loads(_stored(filled))["key"]) == 5


def test_what_other_tools_counted_is_enough(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A sizes.json beside the shards tells the steps; a wrong one is named when the shard is read, and counted past."""
    sizes = {f"{shard:02d}.tar": count for shard, count in enumerate(COUNTS)}
    filled.put("data", "train/sizes.json", json.dumps(sizes).encode())
    daemon = daemons(workers=1)
    datasets = [_dataset(daemon, rank) for rank in range(2)]
    assert [len(dataset) for dataset in datasets] == [5, 5]
    assert sum(len(batch["cls"]) for dataset in datasets for batch in dataset) == 40
    wrong = daemons("wrong", workers=1)
    filled.put("data", "train/sizes.json", json.dumps(sizes | {"04.tar": 20}).encode())
    misled = _dataset(wrong)
    with pytest.raises(FeedError, match=r"expected 20 samples, as s3://data/train/sizes.json says, got 12"):
        list(misled)
    code, facts, said = _index(filled)
    assert (code, facts["samples"], facts["counted"]) == (0, 40, 6), said
    again = _dataset(wrong)
    assert len(again) == 5
    for dataset in (*datasets, misled, again):
        dataset.close()
    for one in (daemon, wrong):
        one.wait_idle()


def _wait_for(happened: Callable[[], bool], process: forks.Running | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _asked_for(s3: S3Server) -> set[str]:
    return {one.key for one in s3.requests if one.method == "GET" and one.key.endswith(".tar")}


@pytest.mark.parametrize(
    ("number", "beside"),
    [
        pytest.param(signal.SIGTERM, True, id="SIGTERM-beside"),
        later(signal.SIGINT, False, id="SIGINT-out"),
        later(signal.SIGINT, True, id="SIGINT-beside"),
        later(signal.SIGTERM, False, id="SIGTERM-out"),
    ],
)
def test_stopped_by_a_signal(filled: S3Server, tmp_path: Path, number: signal.Signals, *, beside: bool) -> None:
    """It saves what it has, says how far it came and how to go on, leaves no directory; the next run goes on."""
    (scratch := tmp_path / "scratch").mkdir()
    out = () if beside else ("--out", str(tmp_path / "counts.json"))
    filled.script("data", "train/04.tar", always=fault.hang())
    process = _started(filled, *out, forked=beside, TMPDIR=str(scratch))
    _wait_for(lambda: len(_asked_for(filled)) == 6, process)  # four at a time: two of them are counted by then
    process.send_signal(number)
    code, facts, said = _ended(process)
    known = facts["known"]
    assert (code, facts["stopped"], facts["failed"]) == (1, True, []), said
    assert 2 <= known <= 5
    assert f"stopped: {known} of 6 shards known, {facts['samples']} samples, in" in said
    assert "run the command again to continue" in said
    assert list(scratch.iterdir()) == []
    saved = json.loads(_stored(filled) if beside else (tmp_path / "counts.json").read_bytes())
    assert saved["sample_count"] == [COUNTS[int(key[:2])] for key in saved["key"]]
    assert len(saved["key"]) == known
    filled.calm()
    before = len(filled.requests)
    code, facts, said = _index(filled, *out)
    assert (code, facts["counted"], facts["samples"], facts["stopped"]) == (0, 6 - known, 40, False), said
    fetched = {one.key for one in filled.requests[before:] if one.key.endswith(".tar")}
    assert fetched == {f"train/{n:02d}.tar" for n in range(6)} - {f"train/{key}" for key in saved["key"]}


@pytest.mark.nightly
def test_stopped_before_it_began(filled: S3Server, tmp_path: Path) -> None:
    """A listing that does not end is given up; nothing is written and nothing left."""
    filled.script("data", "", op="LIST", always=fault.hang())
    process = _started(filled, forked=False, TMPDIR=str(tmp_path))
    _wait_for(lambda: any(one.op == "LIST" for one in filled.requests), process)
    process.terminate()
    code, facts, said = _ended(process)
    assert (code, facts["stopped"], facts["shards"]) == (1, True, 0)
    assert "stopped before the data was listed; no shard was counted" in said
    assert list(tmp_path.iterdir()) == []
    assert filled._objects.find("data", INDEX) is None


def test_two_at_once(filled: S3Server) -> None:
    """Each waits for a shard the other has: the index has all of both, whoever writes last."""
    filled.script("data", "train/04.tar", always=fault.hang())
    first = _started(filled)
    _wait_for(lambda: len(_asked_for(filled)) == 6, first)
    filled.calm()  # what hangs for the first goes on hanging
    code, facts, said = _index(filled)
    assert (code, facts["known"]) == (0, 6), said
    first.terminate()
    code, facts, said = _ended(first)
    assert (code, facts["known"], facts["stopped"]) == (0, 6, False), said
    assert json.loads(_stored(filled))["sample_count"] == COUNTS


def test_what_equal_steps_leave_out_is_told(
    filled: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """40 samples in steps of 14 leave out 12, 7 of them rank 0's; stats and metric count them as each epoch ends."""
    caplog.set_level("INFO", "feedd_client")
    assert _index(filled)[0] == 0
    daemon = daemons(workers=1)
    datasets = [_dataset(daemon, rank, batch_size=7) for rank in range(2)]
    assert [len(dataset) for dataset in datasets] == [2, 2]
    for epoch in (1, 2):
        taken = {label for dataset in datasets for batch in dataset for label in batch["cls"].tolist()}
        assert len(taken) == 28
        assert [dataset.stats()["leftover_samples"] for dataset in datasets] == [7 * epoch, 5 * epoch]
        assert daemon.metrics()["feedd_pipeline_left_out_samples_total"] == 12 * epoch
    said = [record.message for record in caplog.records if "left out" in record.message]
    assert said[0].startswith("epoch 0 left out 7 samples of this rank for equal steps; sharding='sample' or")
    assert said[1] == "epoch 0 left out 5 samples of this rank for equal steps"
    batches = iter(datasets[0])
    next(batches)  # an epoch that is not seen to its end leaves nothing out
    assert datasets[0].stats()["leftover_samples"] == 14
    next(batches)  # its last batch is its end
    assert datasets[0].stats()["leftover_samples"] == 21
    assert next(batches, None) is None
    assert datasets[0].stats()["leftover_samples"] == 21
    for dataset in datasets:
        dataset.close()
    daemon.wait_idle()
