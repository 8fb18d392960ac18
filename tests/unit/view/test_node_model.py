"""The model of a node: what looks at its daemons become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from feedd.diagnosis.finding import PATH, VERDICTS, Diagnosis, Finding
from feedd.diagnosis.node import Look
from feedd.diagnosis.window import FetchWindow, Window
from feedd.view.node_model import BAD_SAMPLES_MAX, GAP_S, POINTS_MAX, NodeModel, stages_of
from feedd.view.node_view import NodeView, StageView
from feedd.wire import feedd_pb2 as pb
from tests.fakes.looks import BATCH_SIZE, answer, look, session


def _after(model: NodeModel, *looks: Look) -> NodeView:
    *_, view = [model.add(one) for one in looks]
    return view


def test_the_first_look_shows_levels_and_no_rates() -> None:
    """Rates need two looks: the first shows jobs and levels, no verdict and no history."""
    view = NodeModel().add(look(100.0))
    assert (view.state, view.version, view.window_s, view.verdict) == ("ready", "1.2.3", 0.0, None)
    assert [one.name for one in view.stages] == list(PATH)
    assert [(one.name, one.rank_count, one.steps) for one in view.jobs] == [("bucket/train", 2, 1000)]
    assert [one.waits for one in view.ranks] == [(), ()]
    assert view.cache.used_bytes == 500
    hand_off = view.stages[PATH.index("hand-off")]
    assert hand_off.level is not None
    assert hand_off.level_text == f"ready {hand_off.level:.0%}"  # a box of the terminal has room for ten letters


def test_rates_and_the_bottleneck_are_of_the_last_seconds() -> None:
    """After two seconds: rates, each rank's wait, progress with its end, and the stage that limits."""
    view = _after(NodeModel(), *(look(100.0 + second, wait=0.4) for second in range(4)))
    assert view.window_s == 3.0
    assert view.verdict is not None
    assert view.verdict.finding.verdict in {"decode_cpu", "unknown", "too_few_workers"}
    decode = view.stages[PATH.index("decode")]
    assert (decode.rate, decode.unit, decode.level) == ("1,000", "samples/s", 1.0)
    assert decode.limits == (view.verdict.about.stage == "decode")
    (job,) = view.jobs
    assert job.batches_per_s == pytest.approx(20.0)
    assert job.samples_per_s == pytest.approx(20.0 * BATCH_SIZE)
    assert job.wait == pytest.approx(0.4)
    assert job.eta_s == pytest.approx((1000 - 30) / 10)
    assert job.cached == 0.5
    assert [len(one.waits) for one in view.ranks] == [3, 3]


def test_every_verdict_has_its_stage() -> None:
    """A verdict of the doctor that no stage is told for would glow nowhere."""
    assert {about.stage for about in VERDICTS.values()} == {*PATH, ""}
    assert {name for name, about in VERDICTS.items() if not about.stage} == {"healthy", "unknown"}


@pytest.mark.parametrize(
    ("fetch", "rate", "detail"),
    [
        (FetchWindow(read_bytes=10 << 20, first_byte_s=0.02), "1.0", "first byte 20 ms"),
        (FetchWindow(read_bytes=10 << 20, peer_bytes=30 << 20), "4.0", "75% from peers"),
        (FetchWindow(read_bytes=10 << 20, peers_paused=2), "1.0", "0% from peers, 2 away"),
    ],
    ids=["no peers", "peers", "away"],
)
def test_bytes_from_peers_count_at_the_store(fetch: FetchWindow, rate: str, detail: str) -> None:
    """The first stage tells how many bytes come from peers, and how many peers are left alone."""
    nothing = Look(0.0, [])
    store, *_ = stages_of(Window(10.0, (), fetch), nothing, nothing, None)
    assert (store.rate, store.unit, store.detail) == (rate, "MiB/s", detail)


def test_two_jobs_on_the_same_data_stay_two() -> None:
    """Two sessions of one rank are two jobs, unless they are DataLoader workers of that rank."""
    twins = [session(0, 50.0, id="aaaaaaaa"), session(0, 40.0, id="bbbbbbbb")]
    assert [one.name for one in NodeModel().add(Look(1.0, [answer(1.0, twins)])).jobs] == [
        "bucket/train",
        "bucket/train #2",
    ]
    workers = [session(0, 50.0, id="aaaaaaaa", consumers=2), session(0, 40.0, id="bbbbbbbb", consumers=2)]
    view = NodeModel().add(Look(1.0, [answer(1.0, workers)]))
    assert [(one.rank_count, len(view.ranks)) for one in view.jobs] == [(1, 1)]


def test_the_verdict_is_about_the_job_that_waits() -> None:
    """A job that is fed and one that waits: the verdict names the second; slow steps of the first are no straggler."""
    model = NodeModel()
    for second in range(4):
        at_s = 100.0 + second
        slow = session(0, at_s, steps_per_s=0.5, id="slow0000", urls=["s3://bucket/val/"], age_s=9e3)
        view = model.add(Look(at_s, [answer(at_s, [*(session(n, at_s, wait=0.5) for n in range(3)), slow])]))
    assert view.verdict is not None
    assert view.verdict_job == "bucket/train"
    assert view.verdict.is_input


def test_lanes_are_one_node() -> None:
    """Caches and sessions of all lanes are added up; a lane that does not answer is named by the state."""
    one, two = answer(10.0, [session(0, 10.0)]), answer(10.0, [session(1, 10.0)])
    view = NodeModel().add(Look(10.0, [one, two]))
    assert (view.lane_count, view.cache.limit_bytes, [rank.rank for rank in view.ranks]) == (2, 4000, [0, 1])
    assert [(folder.entry_count, folder.size_bytes) for folder in view.cache.folders] == [(10, 1000)]
    assert view.jobs[0].rank_count == 2
    assert NodeModel().add(Look(10.0, [one, None])).state == "down"


def test_what_is_kept_is_bounded() -> None:
    """Histories, bad samples and moments have an upper limit, however long somebody looks."""
    model = NodeModel(window_s=5.0)
    samples = [pb.BadSample(id=number, key=str(number), age_s=number) for number in range(200)]
    for second in range(POINTS_MAX + 50):
        view = model.add(look(100.0 + second, bad_samples=samples))
    assert [len(one.waits) for one in view.ranks] == [POINTS_MAX, POINTS_MAX]
    assert len(view.bad_samples) == BAD_SAMPLES_MAX
    assert [one.id for one in view.bad_samples[:2]] == ["0-0", "0-1"]
    assert view.window_s == 5.0
    assert len(model._looks) <= 7


def test_a_gap_and_a_new_daemon_begin_anew() -> None:
    """Nothing is known about the time in which nobody looked, and counters of another daemon begin at 0."""
    model = NodeModel()
    _after(model, look(100.0), look(102.0))
    assert model.add(look(102.0 + GAP_S + 1)).window_s == 0.0
    assert model.add(look(136.0)).window_s > 0.0
    other = look(138.0)
    assert other.daemons[0] is not None
    other.daemons[0].stats.daemon_id = "d2"
    view = model.add(other)
    assert view.window_s == 0.0
    assert [one.waits for one in view.ranks] == [(), ()]


def test_a_rank_that_waits_says_for_what() -> None:
    """The state of a rank is in words; a batch that lies ready is not waited for."""
    states: dict[str, dict[str, Any]] = {
        "waits for data": {"waits_for": "fetching", "ready": 0},
        "waits for decoding": {"waits_for": "decoding", "ready": 0},
        "computes": {"waits_for": "decoding", "ready": 1},
        "is silent": {"waits_for": "", "silent_s": 60.0},
    }
    for expected, facts in states.items():
        view = NodeModel().add(Look(1.0, [answer(1.0, [session(0, 1.0, **facts)])]))
        assert view.ranks[0].state == expected


def test_no_daemon_and_no_job_are_a_view_too() -> None:
    """An idle daemon has stages and no verdict; without a cache there is no fill level."""
    idle = answer(5.0, [], folders=[])
    idle.stats.ClearField("cache")
    view = _after(NodeModel(), Look(5.0, [idle]), replace(Look(8.0, [idle]), at_s=8.0))
    assert (view.jobs, view.ranks, view.verdict) == ((), (), None)
    assert view.stages[1].level is None
    assert view.cache.limit_bytes == 0


@pytest.mark.parametrize(
    ("verdict", "stages", "limits"),
    [
        ("decode_cpu", (), True),
        ("compute_bound", (StageView("GPU", limits=True),), True),
        ("healthy", (StageView("GPU"),), False),
    ],
)
def test_a_bottleneck_is_input_or_a_stage(verdict: str, stages: tuple[StageView, ...], limits: bool) -> None:
    """The screen and the page mark a verdict that limits, whether trainers wait for input or not."""
    found = Diagnosis(Finding(verdict, (), "Do this."), "", 1.0, None)
    assert NodeView(verdict=found, stages=stages).limits == limits
    assert NodeView(verdict=found).waiting == ""


def test_a_view_says_why_it_has_no_verdict() -> None:
    """It measures, no job is running, or none takes batches."""
    jobs = NodeModel().add(look(1.0)).jobs
    assert NodeView().waiting == "measuring"
    assert NodeView(window_s=2.0).waiting == "no job is running"
    assert NodeView(window_s=2.0, jobs=jobs).waiting == "no trainer takes batches"
    assert not NodeView().limits
