"""What is read of daemons and machine, and what becomes of it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd import metrics
from feedd.diagnosis import machine, node
from feedd.diagnosis.machine import GpuReader, MachineReader, MachineReading
from feedd.diagnosis.node import NodeReader, measure
from feedd.errors import NotFound
from feedd.wire import feedd_pb2 as pb
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from feedd.diagnosis.window import RankWindow, Window
    from feedd.metrics import Metric


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of these tests are short."""
    monkeypatch.setattr(node, "POLL_S", 0.02)


def _sample(metric: Metric, value: float, suffix: str = "", **labels: str) -> pb.Sample:
    return pb.Sample(name=metric.name + suffix, labels=labels, value=value)


class _Daemon:
    """Answers from two scripts: that of the first call, and that of all others."""

    def __init__(self, first: pb.SessionEntry | None, last: pb.SessionEntry, **samples: Any) -> None:
        self._sessions = ([] if first is None else [first], [last])
        self._samples = samples
        self._calls = [0, 0]

    async def sessions(self) -> list[pb.SessionEntry]:
        self._calls[0] += 1
        return self._sessions[self._calls[0] > 1]

    async def stats(self) -> pb.StatsResponse:
        self._calls[1] += 1
        samples = self._samples.get("after" if self._calls[1] > 1 else "before", [])
        return pb.StatsResponse(pid=os.getpid(), samples=samples, cache=pb.CacheState(directory="/", limit_bytes=7))


def _entry(times: pb.TrainerTimes | None, age_s: float = 0.2, **facts: Any) -> pb.SessionEntry:
    return pb.SessionEntry(id="12345678", times=times, times_age_s=age_s, assigned_shards=2, assigned_bytes=10, **facts)


async def _measure(daemon: _Daemon, job: str = "", seconds: float = 0.06) -> Window:
    return await measure([daemon], seconds, job=job, local=False)


async def _rank(first: pb.SessionEntry | None, last: pb.SessionEntry) -> RankWindow:
    (rank,) = (await _measure(_Daemon(first, last))).ranks
    return rank


async def test_times_are_those_of_the_window() -> None:
    """What the trainer reported before is subtracted."""
    before = _entry(pb.TrainerTimes(wall_s=100, wait_s=50, steps=1000, pauses=1, pause_s=9, copy_s=20))
    now = pb.TrainerTimes(wall_s=110, wait_s=53, steps=1100, pauses=2, pause_s=11, device="cuda:0", copy_s=28)
    after = _entry(now, rank=3)
    rank = await _rank(before, after)
    assert (rank.steps, rank.wall_s, rank.wait_s, rank.pause_s) == (100, 10, 3, 2)
    assert (rank.device, rank.rank, rank.session) == ("cuda:0", 3, "12345678")
    assert rank.step_s == pytest.approx(0.05)
    assert rank.wait == pytest.approx(0.3)
    assert rank.copying == pytest.approx(0.8)


@pytest.mark.parametrize("former", [None, pb.TrainerTimes(wall_s=500, wait_s=400, steps=9000)])
async def test_a_trainer_that_has_just_begun_counts_from_its_begin(former: pb.TrainerTimes | None) -> None:
    """Its session is new, or another process reads through it."""
    rank = await _rank(None if former is None else _entry(former), _entry(pb.TrainerTimes(wall_s=4, wait_s=1, steps=8)))
    assert (rank.steps, rank.wall_s, rank.wait_s) == (8, 4, 1)


@pytest.mark.parametrize(
    ("facts", "waits"),
    [
        ({"waits_for": "fetching"}, True),
        ({"waits_for": "decoding", "leases": 1}, True),
        ({"waits_for": "decoding", "leases": 3}, False),
        ({"waits_for": "fetching", "leases": 2, "slots": 4}, True),
        ({"waits_for": "fetching", "leases": 3, "slots": 4}, False),
        ({"waits_for": "space"}, False),
        ({}, False),
    ],
)
async def test_a_silent_trainer_waits_or_pauses(facts: dict[str, Any], waits: bool) -> None:
    """It reports when it takes batches. Until then the daemon knows whether it owes one."""
    times = pb.TrainerTimes(wall_s=10, wait_s=1, steps=100)
    rank = await _rank(_entry(times), _entry(times, age_s=30.0, **facts))
    assert rank.wall_s == pytest.approx(0.06, abs=0.3)
    assert rank.wait_s == pytest.approx(rank.wall_s if waits else 0.0)
    assert rank.pause_s == pytest.approx(0.0 if waits else rank.wall_s)


async def test_a_trainer_that_told_nothing_in_a_short_window_waits() -> None:
    """Its report is due after a second; a job with a slow store gets no batch to send it with."""
    times = pb.TrainerTimes(wall_s=10, wait_s=1, steps=100)
    rank = await _rank(_entry(times), _entry(times, age_s=1.5, waits_for="fetching"))
    assert rank.wait == pytest.approx(1.0)
    assert (await _rank(_entry(times), _entry(times, age_s=0.5, waits_for="fetching"))).wall_s == 0.0


async def test_long_steps_are_no_silence() -> None:
    """A trainer of 20 s a step reports every 20 s."""
    times = pb.TrainerTimes(wall_s=200, wait_s=1, steps=10)
    assert (await _rank(_entry(times), _entry(times, age_s=19.0))).wall_s == 0.0


async def test_clients_that_report_nothing_are_no_ranks() -> None:
    """A session whose client has sent no times yet."""
    assert (await _measure(_Daemon(None, _entry(None)))).ranks == ()


@pytest.mark.parametrize(("job", "count"), [("", 1), ("1234", 1), ("group", 1), ("other", 0), ("234", 0), ("77", 1)])
async def test_a_job_is_a_session_or_a_group(job: str, count: int) -> None:
    """By the first digits of its id, by its share= name, or by its process."""
    daemon = _Daemon(None, _entry(pb.TrainerTimes(wall_s=4, steps=8), share="group", pids=[77]))
    assert len((await _measure(daemon, job)).ranks) == count


@pytest.mark.parametrize(("job", "ranks", "count"), [("", {"bbbb"}, 3), ("aaaa", {"aaaa"}, 1)])
async def test_a_verdict_is_about_one_job(job: str, ranks: set[str], count: int) -> None:
    """Ranks of other jobs are left out. Of several jobs, that counts which waits the longest."""

    class _Node(_Daemon):
        async def sessions(self) -> list[pb.SessionEntry]:
            if not await super().sessions():
                return []
            return [
                pb.SessionEntry(id=name, urls=[url], times=pb.TrainerTimes(wall_s=4, wait_s=wait_s, steps=8))
                for name, url, wait_s in (("aaaa", "s3://a/", 0.1), ("bbbb", "s3://b/", 3.0), ("cccc", "s3://b/", 2.9))
            ]

    window = await _measure(_Node(None, _entry(None)), job)
    assert {one.session for one in window.ranks} == ranks
    assert window.job_count == count


async def test_metrics_become_rates_and_means() -> None:
    """Counters are differences, histograms are means, gauges are means over the polls."""
    before = [
        _sample(metrics.SOURCE_SECONDS, 5, "_count", op="read"),
        _sample(metrics.SOURCE_SECONDS, 1, "_sum", op="read"),
        _sample(metrics.DECODE_BUSY, 3),
        _sample(metrics.DECODE_WORKERS, 2),
    ]
    after = [
        _sample(metrics.SOURCE_SECONDS, 15, "_count", op="read"),
        _sample(metrics.SOURCE_SECONDS, 3, "_sum", op="read"),
        _sample(metrics.SOURCE_SECONDS, 99, "_count", op="list"),
        _sample(metrics.SOURCE_ROUND_TRIP, 4, "_count"),
        _sample(metrics.SOURCE_ROUND_TRIP, 0.2, "_sum"),
        _sample(metrics.FETCH_PARTS_MAX, 16),
        _sample(metrics.PIPELINE_LISTING, 2),
        _sample(metrics.SOURCE_FIRST_BYTE, 10, "_count"),
        _sample(metrics.SOURCE_FIRST_BYTE, 1.5, "_sum"),
        _sample(metrics.SOURCE_RETRIES, 4, reason="throttled"),
        _sample(metrics.SOURCE_RETRIES, 9, reason="timeout"),
        _sample(metrics.PEER_READ_BYTES, 30),
        _sample(metrics.PEER_FETCHES, 4, outcome="read"),
        _sample(metrics.PEER_FETCHES, 1, outcome="failed"),
        _sample(metrics.PEER_PAUSED, 2),
        _sample(metrics.SOURCE_BYTES, 10),
        _sample(metrics.FETCH_PARTS, 6),
        _sample(metrics.CACHE_HITS, 3),
        _sample(metrics.CACHE_MISSES, 1),
        _sample(metrics.DECODE_BUSY, 3.02),
        _sample(metrics.DECODE_WORKERS, 2),
    ]
    sizes = {"largest_shard_bytes": 8, "object_bytes": 3}
    waiting = _entry(pb.TrainerTimes(wall_s=4, steps=8), waits_for="decoding", **sizes)
    window = await _measure(_Daemon(waiting, waiting, before=before, after=after))
    fetch = window.fetch
    assert (fetch.requests, fetch.throttled, fetch.parts, fetch.parts_max) == (10, 4, 6.0, 16)
    assert (fetch.round_trip_s, window.listing) == (0.05, 1.0)
    assert (fetch.peer_share, fetch.peer_fetches, fetch.peer_failures, fetch.peers_paused) == (0.75, 5, 1, 2)
    assert fetch.request_s == pytest.approx(0.2)
    assert fetch.first_byte_s == pytest.approx(0.15)
    assert (fetch.hit_share, fetch.shard_bytes, fetch.cache_limit_bytes) == (0.75, 5.0, 7)
    assert (fetch.largest_bytes, fetch.object_bytes) == (8, 3)
    assert (window.decoding, window.fetching, window.workers) == (1.0, 0.0, 2.0)
    assert window.worker_busy == pytest.approx(0.02 / (2 * window.seconds))
    assert window.core_busy == ()  # the daemon is on another machine


def _work(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_the_machine_is_read(tmp_path: Path) -> None:
    """Cores of the daemon's affinity, the main thread's time, and the bytes that are written."""
    reader = MachineReader([os.getpid(), 1 << 30], str(tmp_path))
    before = reader.read([os.getpid(), 1 << 30])
    assert set(before.cores) == os.sched_getaffinity(0)
    (tmp_path / "x").write_bytes(bytes(100_000))
    _work(0.1)
    worked, end = threading.Event(), threading.Event()

    def work() -> None:
        _work(0.4)
        worked.set()
        end.wait(PATIENT_S)

    other = threading.Thread(target=work)
    other.start()
    assert worked.wait(PATIENT_S)
    after = reader.read([os.getpid()])
    end.set()
    other.join()
    assert set(before.processes) == set(after.processes) == {os.getpid()}
    grown = after.processes[os.getpid()].since(before.processes[os.getpid()])
    assert grown.written_bytes >= 100_000
    assert grown.write_calls == after.processes[os.getpid()].write_calls - before.processes[os.getpid()].write_calls
    assert 0.05 <= grown.main_thread_s < 0.4
    assert all(after.cores[core][1] >= total_s >= busy_s for core, (busy_s, total_s) in before.cores.items())


async def test_the_machine_can_be_another(tmp_path: Path) -> None:
    """Readers are given: figures of their disk, link and GPU reach the window."""
    found: list[MachineReading] = []

    class _Machine(MachineReader):
        def read(self, pids: Iterable[int]) -> MachineReading:
            self.disk, self.disk_kind = "nvme1n1", "EBS"
            found.append(super().read(pids))
            links = {"eth0": (10_000 * len(found), 2_000_000)}
            return replace(found[-1], disk_busy_s=0.01 * len(found), links=links)

    class _Gpus(GpuReader):
        def busy(self, _pids: object) -> float:
            return 0.4

    entry = _entry(pb.TrainerTimes(wall_s=4, steps=8))
    daemon = _Daemon(None, entry)
    window = await measure([daemon], 0.06, gpus=_Gpus, machine=lambda pids, _: _Machine(pids, str(tmp_path)))
    assert window.gpu_busy == pytest.approx(0.4)
    assert window.disk == "nvme1n1 EBS"
    assert len(found) > 1
    assert window.disk_busy == pytest.approx(0.01 * (len(found) - 1) / window.seconds)
    assert window.link_sent == pytest.approx(0.005 * (len(found) - 1) / window.seconds)


@pytest.mark.parametrize(
    ("name", "model", "rotational", "kind"),
    [
        ("nvme0n1", "Amazon Elastic Block Store              \n", "0", "EBS"),
        ("nvme1n1", "Amazon EC2 NVMe Instance Storage\n", "0", "NVMe"),
        ("sda", "ST4000\n", "1", "HDD"),
        ("sdb", None, None, ""),
        ("vda", None, "1", ""),
    ],
)
def test_disks_tell_their_kind(tmp_path: Path, name: str, model: str | None, rotational: str | None, kind: str) -> None:
    """On EC2, only the model tells a volume over the network from a local disk."""
    disk = tmp_path / name
    for file, content in (("device/model", model), ("queue/rotational", rotational)):
        if content is not None:
            (disk / file).parent.mkdir(parents=True, exist_ok=True)
            (disk / file).write_text(content)
    assert machine._disk_kind(disk) == kind


def test_a_directory_that_is_gone_has_no_disk(tmp_path: Path) -> None:
    """Nothing is read of it."""
    reader = MachineReader([], str(tmp_path / "gone"))
    assert reader.disk == ""
    assert reader.read([]).disk_busy_s is None


async def test_a_lane_that_does_not_answer_is_an_error_or_a_gap() -> None:
    """Doctor needs the counters of all daemons; a live view shows the others, unless none answers."""
    entry = _entry(pb.TrainerTimes(wall_s=4, steps=8))

    class _Silent(_Daemon):
        async def stats(self) -> pb.StatsResponse:
            raise NotFound("no daemon answers")

    with pytest.raises(NotFound, match="no daemon answers"):
        await measure([_Daemon(None, entry), _Silent(None, entry)], 0.06, local=False)

    async def answers() -> pb.ObserveResponse:
        return pb.ObserveResponse(sessions=[entry])

    async def fails() -> pb.ObserveResponse:
        raise NotFound("no daemon answers")

    look = await NodeReader([answers, fails], local=False).look()
    assert (look.daemons[1], len(look.answers), len(look.sessions)) == (None, 1, 1)
    with pytest.raises(NotFound, match="no daemon answers"):
        await NodeReader([fails, fails], local=False).look()
