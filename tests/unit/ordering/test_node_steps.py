"""Steps of a node with many partitions: what each rank takes, whatever window each partition stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.assignment import Assignment
from feedd.dataset.step_counts import Deal
from feedd.ordering.epoch import EpochMap, EpochOptions, NeedCounts, Segment
from feedd.ordering.node_epoch import NodeEpoch, Piece, Step
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, Topology

if TYPE_CHECKING:
    from feedd.ordering.epoch import Anchor

_OPTIONS = EpochOptions(epoch=1, seed=3, shuffle=True, window_shards=2)


def _expected(shares: list[Assignment], counts: dict[int, int], deal: Deal, index: int) -> Step:
    """Return a step by going through all partitions, sample by sample."""
    per_step = deal.batch_size * deal.local_world_size // len(shares)
    whole: list[tuple[int, int, int, bool]] = []  # partition, window, sample of it, again
    anchors: list[Anchor] = []
    for number, share in enumerate(shares):
        plan = EpochMap(share, _OPTIONS, counts)
        windows = [plan.window_samples(window) for window in range(plan.window_count)]
        total = sum(windows)
        at = [(window, sample) for window, size in enumerate(windows) for sample in range(size)]
        low, high = index * per_step, (index + 1) * per_step
        positions = range(low, high if deal.wrap and total else min(high, total))
        whole += [(number, *at[position % total], position >= total) for position in positions]
        window = at[low][0] if low < total else plan.window_count
        anchors.append((window, sum(windows[:window])))
    low = deal.local_rank * deal.batch_size
    return Step(_pieces(whole[low : low + deal.batch_size]), tuple(anchors))


def _pieces(samples: list[tuple[int, int, int, bool]]) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for number, window, sample, again in samples:
        last = found[-1] if found else None
        if last is not None and (last.partition, last.segment.window, last.segment.high, last.again) == (
            number,
            window,
            sample,
            again,
        ):
            found[-1] = last._replace(segment=last.segment._replace(high=sample + 1))
        else:
            found.append(Piece(number, _segment(window, sample), again))
    return tuple(found)


def _segment(window: int, sample: int) -> Segment:
    return Segment(window, sample, sample + 1)


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[list[Assignment], dict[int, int], Deal, list[int]]:
    parts, ranks = draw(st.sampled_from([(2, 1), (2, 2), (3, 3), (4, 2), (6, 3)]))
    sizes = draw(st.lists(st.integers(1, 5), min_size=parts, max_size=parts))
    firsts = np.cumsum([0, *sizes])
    shares = [
        Assignment(np.arange(first, first + size)) for first, size in zip(firsts[:-1].tolist(), sizes, strict=True)
    ]
    counts = {shard: draw(st.integers(0, 9)) for shard in range(int(firsts[-1]))}
    per_step = draw(st.integers(1, 4))
    deal = Deal(per_step * parts // ranks, draw(st.integers(0, ranks - 1)), ranks, 12, draw(st.booleans()))
    return shares, counts, deal, draw(st.lists(st.integers(0, 11), min_size=1, max_size=14))


@given(_nodes())
def test_every_step_is_what_going_through_all_samples_gives(
    node: tuple[list[Assignment], dict[int, int], Deal, list[int]],
) -> None:
    """In whatever order steps are asked for, and whether counts are known or not, pieces and anchors are the same."""
    shares, counts, deal, steps = node
    if deal.batch_size * deal.local_world_size % len(shares):
        return
    known = {shard: counts[shard] for shard in list(counts)[::2]}
    plan = NodeEpoch(tuple(shares), _OPTIONS, known, deal)
    for index in steps:
        while isinstance(found := plan.step(index), NeedCounts):
            known |= {shard: counts[shard] for shard in found.shards}
        expected = _expected(shares, counts, deal, index)
        assert tuple(piece for piece in found.pieces if piece.size) == expected.pieces
        if expected.pieces:
            assert found.anchors == expected.anchors
        fresh = NodeEpoch(tuple(shares), _OPTIONS, counts, replace(deal))
        fresh.add_anchors(found.anchors)
        assert fresh.step(index) == found


def test_steps_within_a_window_look_at_no_partition_again() -> None:
    """Between windows' ends a step finds each partition where it stands, and says where with the same object."""
    shares = tuple(Assignment(np.arange(part * 4, part * 4 + 4)) for part in range(64))
    counts = dict.fromkeys(range(256), 100)
    plan = NodeEpoch(shares, _OPTIONS, counts, Deal(128, 0, 1))
    located: list[int] = []
    for one in plan._maps:
        locate = one.locate

        def noted(low: int, high: int, locate: object = locate) -> object:
            located.append(low)
            return locate(low, high)  # type: ignore[operator]  # it is one.locate

        one.locate = noted  # type: ignore[method-assign, assignment]  # to see who asks
    found = [plan.step(index) for index in range(100)]  # two samples of each partition in a step: a window of 200
    assert located == [0] * 64
    assert all(isinstance(one, Step) and one.anchors is found[0].anchors for one in found if isinstance(found[0], Step))
    plan.step(100)
    assert located == [0] * 64 + [200] * 64


def test_steps_are_known_as_soon_as_the_last_count_is() -> None:
    """A reader that has planned its epoch without counts tells its steps once every shard is counted."""
    counts: dict[int, int] = {}
    options = ReaderOptions(seed=5, shuffle=True, window_shards=2, batch_size=4, topology=Topology())
    reader = Reader((Assignment(np.arange(6, dtype=np.int64)),), options, counts)
    reader.epoch_map(Cursor(0))
    assert reader.steps(0) is None
    counts.update(dict.fromkeys(range(6), 10))
    assert [reader.steps(epoch) for epoch in range(3)] == [15, 15, 15]
