"""Jobs of a group read the same memory: none sees what another writes, and none loses what it still looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.e2e.shards import numbered
from tests.fakes.forks import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FIELDS = {"jpg": "image:32x32", "cls": "int"}
STEPS = 10
TRAINER = """
import sys
from feedd_client import FeedDataset
dataset = FeedDataset("s3://data/train/", batch_size=8, fields={"jpg": "image:32x32", "cls": "int"}, shuffle=True,
                      seed=3, address=sys.argv[1], share="jobs")
for batch in dataset:
    batch["jpg"].zero_()
    print("took", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon]) -> Daemon:
    """A daemon over four shards."""
    for shard in range(4):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 20))
    return daemons()


def _dataset(daemon: Daemon, **options: Any) -> FeedDataset:
    settings = {"batch_size": 8, "fields": FIELDS, "shuffle": True, "seed": 3, "address": daemon.address}
    return FeedDataset("s3://data/train/", **{**settings, **options})


def _content(batch: Any) -> tuple[bytes, bytes]:
    return batch["cls"].numpy().tobytes(), batch["jpg"].numpy().tobytes()


def test_what_one_writes_no_other_sees(daemon: Daemon) -> None:
    """Jobs side by side get what one alone gets, though each writes over every batch, over two epochs."""
    alone = _dataset(daemon)
    wanted = [_content(batch) for epoch in range(2) for batch in alone]
    assert len(wanted) == 2 * STEPS
    jobs = [_dataset(daemon, share="jobs") for _ in range(3)]
    for epoch in range(2):
        passes = [iter(job) for job in jobs]
        for step in range(STEPS):
            for number, one in enumerate(passes):
                batch = next(one)
                assert _content(batch) == wanted[epoch * STEPS + step], f"epoch {epoch}, step {step}, job {number}"
                batch["jpg"].fill_(number)
                batch["cls"].zero_()
        assert all(next(one, None) is None for one in passes)
    sessions = [job._runtime._idle for job in jobs]
    assert all(session is not None and session.shared_slot_count for session in sessions)


def test_a_batch_outlives_its_session(daemon: Daemon) -> None:
    """A batch somebody still looks at stays what it was when its dataset is gone and the group goes on."""
    others = _dataset(daemon, share="jobs")
    others_pass = iter(others)
    next(others_pass)
    dataset = _dataset(daemon, share="jobs")
    batch = next(iter(dataset))
    batch["cls"][0] = -5
    image, seen = batch["jpg"], _content(batch)
    label = batch["cls"]
    del batch
    dataset._runtime.close()
    for _ in range(3):
        for _ in others_pass:
            pass
        others_pass = iter(others)
    assert (label.numpy().tobytes(), image.numpy().tobytes()) == seen


def test_a_killed_job_leaves_its_places(daemon: Daemon) -> None:
    """When a job is killed in the middle of a batch the others get all of theirs, and it holds nothing."""
    wanted = [_content(batch) for batch in _dataset(daemon)]
    daemon.wait_idle()
    job = _dataset(daemon, share="jobs")
    mine = iter(job)
    got = [_content(next(mine))]
    with Script(TRAINER, [daemon.address], daemon.home / "trainer.log") as trainer:
        assert trainer.stdout.readline() == b"took\n"
        trainer.kill()
    got += [_content(batch) for batch in mine]
    assert got == wanted
    daemon.wait_idle(sessions=1)
