"""``feedd top``: frames for every size of a terminal, and what keys change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from feedd.cli.top import PANELS, SORTS, ScreenState, draw, measured_once, pressed, split_keys
from feedd.diagnosis.node import Look
from feedd.view.node_model import NodeModel
from feedd.view.node_view import NodeView
from feedd.wire import feedd_pb2 as pb
from tests.fakes.looks import answer, look, session


def _view(ranks: int = 2) -> NodeView:
    model = NodeModel()
    evil = pb.LogEntry(level="error", text="a line\x1b[31m of red", count=3, age_s=70)
    sample = pb.BadSample(id=1, url="s3://b/x.tar", key="key\x1b]0;title\x07", field="jpg", reason="torn", age_s=1)
    for second in range(4):
        view = model.add(look(100.0 + second, ranks, wait=0.4, log=[evil], bad_samples=[sample]))
    return view


def _text(view: NodeView, state: ScreenState, width: int, height: int | None) -> str:
    return "\n".join(line.plain for line in draw(view, state, width, height))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 20), (40, 12), (20, 5), (10, 1)])
@pytest.mark.parametrize("view", [NodeView(), _view(), _view(64)], ids=["empty", "job", "64 ranks"])
def test_a_frame_fits_its_terminal(view: NodeView, width: int, height: int) -> None:
    """As many lines as the terminal has, none wider, in every panel; the keys stand in the last one."""
    for panel in PANELS:
        lines = draw(view, ScreenState(panel=panel), width, height)
        assert len(lines) == height
        assert max(line.cell_len for line in lines) <= width
        assert lines[-1].plain.startswith(" q ")


def test_a_frame_shows_the_path_the_bottleneck_and_the_job() -> None:
    """At the usual size of a terminal: six stages, the doctor's sentence, progress, and each rank's wait."""
    text = _text(_view(), ScreenState(), 80, 24)
    for name in ("store", "cache", "decode", "hand-off", "trainer", "GPU"):
        assert f" {name} " in text
    assert "bucket/train" in text
    assert " 40%" in text
    assert "1,000/s" in text
    assert "  do   " in text


def test_one_frame_has_all_panels() -> None:
    """Without a height everything is printed: ranks, cache, log and bad samples."""
    text = _text(_view(), ScreenState(), 100, None)
    for title in ("ranks", "cache", "log", "bad samples"):
        assert f"\n{title}  " in text
    assert "1 min ago" in text
    assert "(3 times)" in text


def test_control_characters_do_not_reach_the_terminal() -> None:
    """Names and reasons come from data: an escape sequence in them is shown, and not obeyed."""
    for height in (None, 50):
        text = _text(_view(), ScreenState(), 120, height)
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "\N{REPLACEMENT CHARACTER}[31m" in text


def test_ranks_are_sorted_and_filtered() -> None:
    """By rank, by wait, or the slowest first; a filter leaves the jobs that have the text."""
    view = _view(3)
    figures = zip(view.ranks, (0.1, 0.5, 0.3), (3.0, 2.0, 1.0), strict=True)
    ranks = tuple(replace(one, wait=wait, batches_per_s=rate) for one, wait, rate in figures)
    view = NodeView(jobs=view.jobs, ranks=ranks)

    def order(sort: str) -> list[str]:
        lines = draw(view, ScreenState(sort=sort), 60, 40)
        at = next(number for number, line in enumerate(lines) if line.plain.startswith("ranks"))
        return [line.plain.split()[0] for line in lines[at + 1 : at + 4]]

    assert [order(sort) for sort in SORTS] == [["0", "1", "2"], ["1", "2", "0"], ["2", "1", "0"]]
    assert "no job has 'elsewhere'" in _text(view, ScreenState(filter="elsewhere"), 80, 24)
    assert "bucket/train" in _text(view, ScreenState(filter="TRAIN"), 80, 24)


def test_a_long_panel_scrolls() -> None:
    """64 ranks do not fit: the title says which lines are shown, and the last ones can be reached."""
    view = _view(64)
    assert "1 to " in _text(view, ScreenState(), 80, 24)
    assert "  63 " not in _text(view, ScreenState(), 80, 24)
    assert "  63 " in _text(view, ScreenState(scroll=500), 80, 24)


def test_keys_change_the_screen() -> None:
    """Sort, panel, pause, help and scrolling follow their keys; q and Ctrl-C quit."""
    state = ScreenState()
    for keys, attribute, expected in [
        ("s", "sort", "wait"),
        ("ss", "sort", "rate"),
        ("sss", "sort", "rank"),
        ("\t", "panel", "cache"),
        (" ", "paused", True),
        ("?", "help", True),
        ("\x1b[B\x1b[B\x1b[A", "scroll", 1),
        ("\x1b[6~", "scroll", 10),
        ("k", "scroll", 0),
        ("z", "sort", "rank"),
    ]:
        after: ScreenState | None = state
        for key in split_keys(keys):
            assert after is not None
            after = pressed(after, key)
        assert getattr(after, attribute) == expected, keys
    assert pressed(state, "q") is None
    assert pressed(state, "\x03") is None


def test_the_filter_is_typed() -> None:
    """After a slash letters are the filter, q included; Backspace, Enter and Esc do what they do elsewhere."""
    state: ScreenState | None = ScreenState()
    for key in split_keys("/qx\x7f"):
        assert state is not None
        state = pressed(state, key)
    assert state is not None
    assert (state.typing, state.filter) == (True, "q")
    done = pressed(state, "\r")
    assert done is not None
    assert (done.typing, done.filter) == (False, "q")
    cleared = pressed(done, "\x1b")
    assert cleared is not None
    assert cleared.filter == ""
    assert pressed(state, "\x03") is None


@pytest.mark.parametrize(("step_s", "measured_s"), [(0.1, 2.0), (6.0, 5.0), (60.0, 10.0)])
def test_a_single_frame_waits_for_slow_jobs(step_s: float, measured_s: float) -> None:
    """One frame measures 2 s, longer if a job has not taken a batch, and 10 s at the most."""
    now_s = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    async def look_now() -> Look:
        return Look(now_s, [answer(now_s, [session(0, now_s, steps_per_s=1 / step_s)])])

    async def frame() -> NodeView:
        model = NodeModel()
        model.add(await look_now())
        return await measured_once(look_now, model, sleep)

    assert asyncio.run(frame()).window_s == measured_s
