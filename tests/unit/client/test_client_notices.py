"""What the client makes of a daemon's notices: logged once, by one process of a node, and kept in stats()."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from feedd_client import Topology
from tests.fakes.feed_script import Fault

if TYPE_CHECKING:
    import pytest

    from tests.fakes.feed_client import Bench

LOST = {"kind": "hidden-shards", "text": "2 shards are hidden", "count": 2, "size_bytes": 9, "warns": True}
LATE = {"kind": "late-fields", "size_bytes": 0, "warns": True}
QUIET = {"kind": "side-files", "text": "notes", "count": 1, "size_bytes": 4, "warns": False}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about data."""
    records = [one for one in caplog.records if one.levelno == logging.WARNING]
    return [one.getMessage() for one in records if "shards" in one.getMessage()]


def test_a_warning_is_logged_once_however_often_the_dataset_is_opened(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a reconnect nor a later pass says it again; what is surely no data is in stats() only."""
    server = bench.server(steps=3, faults=(Fault(1, "vanish"),), notices=(LOST, QUIET))
    dataset = bench.dataset(server)
    for _ in range(2):
        assert sum(1 for _ in dataset) == 3
    server.restart()
    assert sum(1 for _ in dataset) == 3
    stats = dataset.stats()
    assert stats["reconnects"]
    assert said(caplog) == ["2 shards are hidden"]
    assert stats["notices"] == {
        "hidden-shards": {"text": "2 shards are hidden", "count": 2, "bytes": 9, "warns": True},
        "side-files": {"text": "notes", "count": 1, "bytes": 4, "warns": False},
    }


def test_one_process_of_a_node_logs(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Each rank has the notices in stats(); the first of its node has them in the log."""
    server = bench.server(steps=1, notices=(LOST,))
    for rank in range(4):
        topology = Topology(
            world_size=4, rank=rank, local_world_size=2, local_rank=rank % 2, node_count=2, node_rank=rank // 2
        )
        dataset = bench.dataset(server, topology=topology, uneven="allow")
        assert sum(1 for _ in dataset) == 1
        assert dataset.stats()["notices"]["hidden-shards"]["count"] == 2
    assert said(caplog) == ["2 shards are hidden"] * 2


def test_what_a_daemon_says_is_bounded(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that says too much fills neither the log nor the memory."""
    many = tuple({"kind": f"{n}", "text": "shards" * 10_000, "count": 1, "warns": True} for n in range(1000))
    dataset = bench.dataset(bench.server(steps=1, notices=many))
    assert sum(1 for _ in dataset) == 1
    assert len(said(caplog)) == len(dataset.stats()["notices"]) == 64
    assert max(map(len, said(caplog))) == 2000


def test_what_is_told_while_batches_come_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The first warning of a kind is in the log, what it grows to in stats(), and the next pass says nothing again."""
    grown = [{**LATE, "count": count, "text": f"{count} fields of shards"} for count in (1, 2)]
    server = bench.server(steps=3, notices=(QUIET,), later_notices={0: (grown[0], QUIET), 2: (grown[1], QUIET)})
    dataset = bench.dataset(server)
    for _ in range(2):
        assert sum(1 for _ in dataset) == 3
        notices = dataset.stats()["notices"]
        assert {kind: notice["count"] for kind, notice in notices.items()} == {"late-fields": 2, "side-files": 1}
    assert said(caplog) == ["1 fields of shards"]


def test_an_old_daemon_says_nothing(bench: Bench) -> None:
    """Without notices the client has none, and works as before."""
    dataset = bench.dataset(bench.server(steps=2))
    assert sum(1 for _ in dataset) == 2
    assert dataset.stats()["notices"] == {}
