"""Which verdict follows from which window, and what is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.diagnosis.diagnose import diagnose
from feedd.diagnosis.finding import STAGES, VERDICTS
from feedd.diagnosis.window import FetchWindow, RankWindow, Window

MIB = 1 << 20
STARVED = RankWindow("a" * 8, 0, steps=100, wall_s=10.0, wait_s=6.0)
FED = RankWindow("b" * 8, 0, steps=100, wall_s=10.0, wait_s=0.1)
FETCH = FetchWindow(
    requests=100,
    read_bytes=100 * MIB,
    request_s=0.2,
    first_byte_s=0.02,
    parts=8.0,
    misses=10,
    cache_limit_bytes=10 << 30,
    assigned_bytes=100 * 32 * MIB,
    assigned_shards=100,
)
FETCHES = Window(10.0, (STARVED,), FETCH, fetching=0.9, decoding=0.1, workers=2, worker_busy=0.2, core_busy=(0.3, 0.3))
DECODES = Window(10.0, (STARVED,), FetchWindow(hits=10), decoding=1.0, workers=2, worker_busy=0.98, core_busy=(1, 1))
HEALTHY = Window(10.0, (FED,), FetchWindow(hits=10), decoding=1.0, workers=2, worker_busy=0.3, core_busy=(0.4, 0.4))


def _fetch(**changes: Any) -> Window:
    return replace(FETCHES, fetch=replace(FETCH, **changes))


def _rank(window: Window, **changes: Any) -> Window:
    return replace(window, ranks=(replace(window.ranks[0], **changes),))


CASES = {
    "healthy": HEALTHY,
    "compute_bound": replace(HEALTHY, gpu_busy=0.95),
    "small_batch": replace(HEALTHY, gpu_busy=0.4),
    "host_compute": replace(_rank(HEALTHY, host_busy=0.97), gpu_busy=0.4),
    "straggler": replace(HEALTHY, ranks=(FED, FED, replace(FED, rank=2, steps=50))),
    "checkpointing": _rank(HEALTHY, pause_s=3.0, written_bytes=40 * MIB),
    "evaluation": _rank(HEALTHY, pause_s=3.0, written_bytes=100),
    "logging": _rank(HEALTHY, write_calls=1000),
    "s3_throttling": _fetch(throttled=10),
    "failing_peers": _fetch(peer_fetches=10, peer_failures=2, peers_paused=1),
    "s3_latency": _fetch(first_byte_s=0.15),
    "s3_far": _fetch(first_byte_s=0.15, round_trip_s=0.1),
    "skewed_shards": _fetch(largest_bytes=400 * MIB),
    "listing": Window(10.0, (), listing=0.9),
    "h2d": _rank(replace(DECODES, decoding=0.0), copy_s=9.0),
    "communication": replace(HEALTHY, link_sent=0.93, gpu_busy=0.99),
    "s3_bandwidth": FETCHES,
    "small_objects": _fetch(object_bytes=10_000),
    "shard_sizes": _fetch(assigned_shards=10),
    "cache_too_small": _fetch(evictions=9, cache_limit_bytes=1 << 30),
    "disk": replace(FETCHES, disk="nvme0n1", disk_busy=0.97),
    "decode_cpu": DECODES,
    "too_few_workers": replace(DECODES, workers=1, core_busy=(1, 0.2, 0.1, 0.1)),
    "too_many_workers": replace(DECODES, workers=8, cpu_pressure=0.9),
    "uneven_cores": replace(DECODES, worker_busy=0.6, core_busy=(1.0, 0.1)),
    "transport": _rank(replace(DECODES, worker_busy=0.3, core_busy=(0.4, 0.4)), inline=True),
    "unpinned_memory": _rank(replace(DECODES, worker_busy=0.3, core_busy=(0.4, 0.4)), unpinned=True),
    "unknown": replace(DECODES, worker_busy=0.3, core_busy=(0.4, 0.4)),
}


@pytest.mark.parametrize("verdict", sorted(CASES))
def test_each_cause_has_its_verdict(verdict: str) -> None:
    """A window with one cause gets its name, and evidence on the right side of the thresholds."""
    told = diagnose(CASES[verdict]).as_json()
    assert told["verdict"] == verdict
    assert told["advice"]
    assert set(told) == {"verdict", "evidence", "next", "knob", "gain", "advice"}


@pytest.mark.parametrize(
    ("window", "verdict"),
    [
        (_fetch(evictions=9), "s3_bandwidth"),  # the cache has room for all
        (_fetch(evictions=1, cache_limit_bytes=1 << 30), "s3_bandwidth"),  # the cache has just become full
        (_fetch(evictions=9, cache_limit_bytes=1 << 30, hits=90), "cache_too_small"),  # each batch of a shard is a hit
        (replace(DECODES, cpu_pressure=0.9), "decode_cpu"),  # as many workers as cores
        (_rank(DECODES, wait_s=1.0, pause_s=4.0), "evaluation"),  # pauses take more of the time than waits
        (_rank(DECODES, wait_s=3.0, pause_s=4.0), "decode_cpu"),
        (_rank(HEALTHY, pause_s=0.5, written_bytes=40 * MIB), "healthy"),  # a checkpoint that costs little
        (replace(HEALTHY, ranks=(FED, replace(FED, rank=1, steps=50))), "healthy"),  # two ranks have no median
        (_rank(HEALTHY, steps=4, write_calls=200), "healthy"),  # a line in each long step, and threads that wake others
        (_rank(HEALTHY, steps=1000, write_calls=3000), "healthy"),  # short steps with a line in each
        (_fetch(throttled=1), "s3_bandwidth"),
        (_fetch(peer_fetches=10, peer_failures=1, peers_paused=1), "s3_bandwidth"),  # one silence, and it is left alone
        (_fetch(assigned_shards=100_000), "small_objects"),  # a daemon that tells no sizes of objects
        (_fetch(first_byte_s=0.15, round_trip_s=0.001), "s3_latency"),  # the store is near
        (_fetch(first_byte_s=0.15, round_trip_s=0.02), "s3_latency"),  # most of the time goes into the store itself
        (_fetch(first_byte_s=0.015, round_trip_s=0.008, request_s=0.02), "s3_latency"),  # another zone of the region
        (replace(FETCHES, fetching=0.4, decoding=0.6, core_busy=(0.95, 0.95)), "s3_bandwidth"),  # workers are idle
        (replace(FETCHES, fetching=0.4, decoding=0.6, worker_busy=0.95, core_busy=(1, 1)), "decode_cpu"),
        (_fetch(round_trip_s=0.1), "s3_bandwidth"),  # most of a request comes after its first byte
        (_fetch(largest_bytes=100 * MIB), "s3_bandwidth"),  # three times the mean
        (replace(HEALTHY, listing=0.9), "healthy"),  # another job opens
        (replace(DECODES, disk="sda", disk_busy=0.97), "decode_cpu"),  # cores are busy as well
        (replace(DECODES, core_busy=(0.3, 0.2), disk="sda", disk_busy=0.97), "disk"),
        (_rank(DECODES, copy_s=9.0, unpinned=True), "unpinned_memory"),
        (_rank(DECODES, copy_s=5.0), "decode_cpu"),
        (replace(DECODES, core_busy=(1.0, 0.3)), "uneven_cores"),  # two workers on one core
        (_rank(replace(DECODES, worker_busy=0.5), inline=True), "transport"),  # cores work for the transport
        (_rank(DECODES, inline=True), "decode_cpu"),
    ],
)
def test_one_sign_is_not_enough(window: Window, verdict: str) -> None:
    """Rules with several conditions need all of them."""
    assert diagnose(window).finding.verdict == verdict


def test_peers_are_evidence() -> None:
    """Whatever else limits the bytes, how many come from peers is told; without a peer cache, nothing is."""
    found = diagnose(_fetch(read_bytes=1 * MIB, peer_bytes=3 * MIB, peer_fetches=3, peers_paused=1)).finding
    told = {one.what: one.value for one in found.evidence}
    assert (told["bytes that came from peers"], told["peers that are left alone"]) == (0.75, 1)
    assert not any("peers" in one.what for one in diagnose(FETCHES).finding.evidence)


def test_every_verdict_is_tried() -> None:
    """No verdict stands in the table that no window leads to."""
    assert set(VERDICTS) == set(CASES)
    assert set(STAGES) <= set(VERDICTS)


def test_more_workers_gain_until_the_trainer_limits() -> None:
    """One worker of four cores decodes 10 batches/s; with four it would decode 38, and the trainer takes 25."""
    found = diagnose(CASES["too_few_workers"])
    assert found.now == 10.0
    assert found.predicted == pytest.approx(25.0)
    assert found.finding.knob is not None
    assert (found.finding.knob.now, found.finding.knob.to) == ("1", "4")
    slow = diagnose(_rank(CASES["too_few_workers"], wait_s=9.9))
    assert slow.predicted == pytest.approx(10 * (1 + 2.6))


def test_more_parts_are_advised_where_all_are_in_use() -> None:
    """Where fewer parts are in flight than allowed, the option is not what limits."""
    full = diagnose(_fetch(first_byte_s=0.15, parts=15.0, parts_max=16))
    assert full.finding.knob is not None
    assert (full.finding.knob.now, full.finding.knob.to) == ("16", "32")
    assert full.predicted == pytest.approx(20.0)
    few = diagnose(_fetch(first_byte_s=0.15, parts=8.0, parts_max=16))
    assert (few.finding.verdict, few.finding.knob, few.predicted) == ("s3_latency", None, None)


def test_cores_that_others_take_do_not_limit_the_job() -> None:
    """A job that takes little of the cores gets more of them, idle or not; one that takes most of them does not."""
    few = _fetch(first_byte_s=0.15, parts=16.0, parts_max=16)
    full = replace(few, core_busy=(1.0, 1.0), worker_busy=0.05)
    assert diagnose(full).predicted == pytest.approx(20.0)
    own = replace(few, core_busy=(0.9, 0.9), worker_busy=0.8, loop_busy=0.0)  # 1.6 of the 1.8 busy cores are its own
    assert diagnose(own).predicted == pytest.approx(10 * 1.8 / 1.6)
    half = replace(few, core_busy=(1.0, 1.0), worker_busy=0.4, loop_busy=0.0)
    assert diagnose(half).predicted == pytest.approx(10 * 1.0 / 0.8)


def test_rates_are_over_the_time_that_was_reported() -> None:
    """Reports come once a second, so the end of a window may be missing; most of it is not."""
    assert Window(3.0, (RankWindow("a", 0, steps=20, wall_s=2.0, wait_s=0.0),)).batches_per_s == pytest.approx(10.0)
    assert Window(10.0, (RankWindow("a", 0, steps=20, wall_s=0.1, wait_s=0.0),)).batches_per_s == pytest.approx(
        20 / 8.5
    )
    assert Window(2.0, (RankWindow("a", 0, steps=20, wall_s=0.1, wait_s=0.0),)).batches_per_s == pytest.approx(20.0)


def test_no_gain_is_predicted_where_it_depends_on_something_else() -> None:
    """A faster disk, and the way through shared memory: there is an option, and no figure."""
    for window in (CASES["disk"], CASES["transport"], CASES["listing"]):
        found = diagnose(window)
        assert found.finding.knob is not None
        assert found.predicted is None


@pytest.mark.parametrize(("kind", "word"), [("EBS", "IOPS"), ("NVMe", "RAID 0"), ("", "local NVMe")])
def test_advice_follows_the_kind_of_disk(kind: str, word: str) -> None:
    """A volume over the network can be made faster; a local disk needs another one beside it."""
    found = diagnose(replace(FETCHES, disk=f"nvme1n1 {kind}".strip(), disk_busy=0.97)).finding
    assert found.verdict == "disk"
    assert word in found.advice


def test_no_gain_is_promised_without_a_cause() -> None:
    """Where no stage stands out, or none is to blame, there is no figure."""
    assert diagnose(CASES["unknown"]).predicted is None
    assert diagnose(HEALTHY).predicted is None
    assert diagnose(FETCHES).predicted is None  # more bandwidth is no option of ours
    assert diagnose(_rank(CASES["evaluation"], steps=0)).predicted is None  # a rate that is not known


def test_a_pause_is_worth_its_time() -> None:
    """Without pauses of 30 % of the time, a job takes 1/0.7 as many batches."""
    assert diagnose(CASES["evaluation"]).predicted == pytest.approx(10 / 0.7)


shares = st.floats(0, 1)


@given(
    wait=shares,
    pause=shares,
    steps=st.integers(0, 1000),
    fetching=shares,
    busy=shares,
    cores=st.lists(shares, max_size=4),
    workers=st.integers(0, 8),
    hits=st.integers(0, 9),
    misses=st.integers(0, 9),
    evictions=st.integers(0, 9),
    loop=st.none() | shares,
    disk=st.none() | shares,
)
def test_any_window_gets_a_verdict(
    *,
    wait: float,
    pause: float,
    steps: int,
    fetching: float,
    busy: float,
    cores: list[float],
    workers: int,
    hits: int,
    misses: int,
    evictions: int,
    loop: float | None,
    disk: float | None,
) -> None:
    """Whatever was measured: one verdict, a prediction that is no loss, and JSON without numbers that are none."""
    rank = RankWindow("c" * 8, 0, steps, 10.0, 10 * wait, 10 * (1 - wait) * pause)
    fetch = FetchWindow(hits=hits, misses=misses, evictions=evictions, assigned_bytes=evictions)
    found = diagnose(
        Window(10.0, (rank,), fetch, fetching, 1 - fetching, workers, busy, tuple(cores), None, disk, "sda", loop)
    )
    assert found.finding.verdict in VERDICTS
    assert found.predicted is None or found.predicted >= found.now
    assert found.behind in {"", *STAGES}
