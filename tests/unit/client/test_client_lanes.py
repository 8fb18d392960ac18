"""Which daemon of a node serves a rank: pure, and the same on both sides."""

from __future__ import annotations

import itertools
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd import values
from feedd.config.types import lane_address as daemons_address
from feedd.lanes.lane_choice import serving_daemons
from feedd.lanes.node_client import NodeClient, warm_lanes
from feedd.open_spec import OrderSpec
from feedd.warming import Amount, WarmProgress, WarmSpec
from feedd_client.state import lanes_of
from feedd_client.topology import Topology, daemon_of, in_lane, planned_lanes
from feedd_client.transport import lane_address, parse_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def _ranks(nodes: int, ranks: int) -> list[Topology]:
    return [
        Topology(nodes * ranks, node * ranks + rank, ranks, rank, nodes, node)
        for node in range(nodes)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(
    ("ranks", "daemons", "partitions", "lanes"),
    [
        (8, 1, None, 1),
        (8, 4, None, 4),
        (8, 6, None, 4),
        (6, 4, None, 3),
        (7, 4, None, 1),
        (1, 4, None, 1),
        (8, 64, None, 8),
        (8, 4, 8, 4),
        (8, 4, 4, 2),  # two nodes: two partitions for each
        (8, 4, 2, 1),
    ],
)
def test_each_lane_has_as_many_ranks(ranks: int, daemons: int, partitions: int | None, lanes: int) -> None:
    """A plan has at most as many lanes as there are daemons, and both ranks and partitions are multiples."""
    for topology in _ranks(2, ranks):
        assert planned_lanes(topology, daemons, partitions) == lanes


def test_nodes_that_differ_have_one_lane() -> None:
    """Where another node has other ranks, its lanes would differ too."""
    assert planned_lanes(Topology(12, 0, 8, 0, 2, 0), 4) == 1


@given(nodes=st.integers(1, 4), ranks=st.sampled_from([1, 2, 4, 6, 8]), lanes=st.sampled_from([1, 2, 4]))
def test_client_and_daemon_agree(nodes: int, ranks: int, lanes: int) -> None:
    """Both sides place a rank alike, all places are taken once, and a node keeps its keys."""
    if ranks % lanes:
        return
    seen = set()
    for topology in _ranks(nodes, ranks):
        ours = in_lane(topology, lanes)
        theirs = values.Topology(*astuple(topology)).in_lane(lanes)
        assert astuple(ours) == astuple(theirs)
        assert ours.node_rank % nodes == topology.node_rank  # key i is read by node i mod nodes, as without lanes
        seen.add((ours.node_rank, ours.local_rank))
    assert len(seen) == nodes * ranks


def test_ranks_that_lanes_do_not_divide_are_refused() -> None:
    """A client that asks for such a plan is told so."""
    with pytest.raises(ValueError, match="multiple of 3 lanes"):
        values.Topology(4, 0, 4, 0, 1, 0).in_lane(3)
    with pytest.raises(ValueError, match="multiple of 2 lanes"):
        values.Topology(6, 0, 4, 0, 2, 0).in_lane(2)


def test_replicated_data_is_split_by_key_within_the_node() -> None:
    """Every node reads all data, so its lanes split all of it; other nodes do not count."""
    order = OrderSpec(4, values.Topology(8, 6, 4, 2, 2, 1), sharding="replicated", partitions=2)
    lane = order.in_lanes(2)
    assert (lane.sharding, lane.partitions) == ("key", 0)
    assert lane.topology == values.Topology(4, 2, 2, 0, 2, 1)
    assert replace(order, sharding="key").in_lanes(2).topology == values.Topology(8, 6, 2, 0, 4, 3)
    assert order.in_lanes(1) == order


@pytest.mark.parametrize(
    ("lanes", "daemons", "expected"),
    [(4, 4, [0, 0, 1, 1, 2, 2, 3, 3]), (4, 2, [0, 0, 1, 1, 0, 0, 1, 1]), (4, 1, [0] * 8), (8, 4, [0, 1, 2, 3] * 2)],
)
def test_neighbours_share_a_daemon(lanes: int, daemons: int, expected: list[int]) -> None:
    """Consecutive ranks are in one lane; with more lanes than daemons, lanes take turns."""
    assert [daemon_of(rank, lanes, daemons, ["s3://b/"]) for rank in _ranks(1, 8)] == expected


def test_small_jobs_spread_by_their_data() -> None:
    """A job with fewer ranks than daemons goes where its URLs say, always to the same."""
    (alone,) = _ranks(1, 1)
    chosen = [daemon_of(alone, 1, 4, [f"s3://bucket/{number}/"]) for number in range(64)]
    assert set(chosen) == {0, 1, 2, 3}
    assert chosen == [daemon_of(alone, 1, 4, [f"s3://bucket/{number}/"]) for number in range(64)]
    pair = _ranks(1, 2)
    for number in range(16):
        first, second = (daemon_of(rank, 2, 4, [f"s3://bucket/{number}/"]) for rank in pair)
        assert second - first == 2  # each in its half of the node


@pytest.mark.parametrize("text", ["unix:///run/feedd/feedd.sock", "10.0.0.1:7070", "[::1]:7070"])
def test_both_sides_know_the_address(text: str) -> None:
    """The client dials where the lane listens."""
    address = parse_address(text)
    assert lane_address(address, 0) is address
    for lane in (1, 3):
        assert lane_address(address, lane) == parse_address(daemons_address(text, lane))
    assert lane_address(parse_address("tls://node:7070"), 2) == parse_address("tls://node:7270")


@given(
    ranks=st.sampled_from([1, 2, 3, 4, 6, 8]), daemons=st.integers(1, 8), url=st.text("abc/", min_size=1, max_size=9)
)
def test_a_warm_up_reaches_the_daemons_that_serve(ranks: int, daemons: int, url: str) -> None:
    """``feedd cache warm --ranks`` warms exactly the lanes that the trainers use."""
    used = [daemon_of(rank, planned_lanes(rank, daemons), daemons, [url]) for rank in _ranks(1, ranks)]
    assert list(dict.fromkeys(used)) == serving_daemons(ranks, daemons, [url])


def _saved(node_count: int) -> dict[str, int]:
    return {"node_count": node_count}


def test_a_plan_keeps_its_lanes() -> None:
    """On nodes with any number of daemons; None: the plan has no lanes yet, or they do not fit the ranks."""
    options: Any = SimpleNamespace(partitions=None)
    one_node, two_nodes = Topology(8, 0, 8, 0, 1, 0), Topology(8, 0, 4, 0, 2, 0)
    assert lanes_of({}, one_node, options) is None
    assert lanes_of(_saved(4), one_node, options) == 4
    assert lanes_of(_saved(4), two_nodes, options) == 2
    assert lanes_of(_saved(3), two_nodes, options) is None  # lanes would not fill the nodes
    assert lanes_of(_saved(3), one_node, options) is None  # ranks would not fill the lanes


def test_partitions_leave_the_lanes_open_between_batches() -> None:
    """Within a batch each rank must be as it was."""
    options: Any = SimpleNamespace(partitions=4)
    node = Topology(8, 0, 8, 0, 1, 0)
    assert lanes_of(_saved(4), node, options) is None
    assert lanes_of(_saved(4), node, options, row=3) == 4


@given(nodes=st.integers(1, 3), lanes=st.integers(2, 4), sharding=st.sampled_from(["key", "size", "replicated"]))
def test_a_warm_up_has_the_assignment_of_the_plan(nodes: int, lanes: int, sharding: str) -> None:
    """A lane warms as the node that the lane is in the plan."""
    for node, lane in itertools.product(range(nodes), range(lanes)):
        warm = WarmSpec(("s3://b/",), nodes, node, sharding).in_lane(lane, lanes)
        rank = values.Topology(nodes * lanes, node * lanes + lane, lanes, lane, nodes, node)
        plan = OrderSpec(4, rank, sharding=sharding).in_lanes(lanes)
        assert warm.sharding == plan.sharding
        assert (warm.node_count, warm.node_rank) == (plan.topology.node_count, plan.topology.node_rank)


async def test_a_warm_up_reports_sums() -> None:
    """Of all lanes that have finished listing, each counted once."""
    seen: list[int] = []
    parts: list[int] = []

    def warm_of(size: int) -> Callable[..., Awaitable[object]]:
        async def warm(spec: WarmSpec, report: Callable[..., None]) -> None:
            parts.append(spec.node_rank)
            for count in (1, size):
                report(WarmProgress(Amount(count, 10 * count)), None)

        return warm

    await warm_lanes(
        WarmSpec(("s3://b/",)), [warm_of(2), warm_of(5)], lambda total, _: seen.append(total.total.object_count)
    )
    assert seen == [1, 2, 3, 7]
    assert parts == [0, 1]


@pytest.mark.parametrize(("ranks", "used"), [(None, {0, 1, 2, 3}), (2, None)])
async def test_a_warm_up_of_a_node_uses_the_lanes_of_its_ranks(ranks: int | None, used: set[int] | None) -> None:
    """Without a number of ranks, all of them."""
    warmed: set[int] = set()

    class Daemon:
        def __init__(self, number: int) -> None:
            self.number = number

        async def warm(self, _spec: WarmSpec, _report: object) -> None:
            warmed.add(self.number)

    daemons: list[Any] = [Daemon(number) for number in range(4)]
    node = NodeClient(daemons)
    await node.warm(WarmSpec(("s3://b/",)), ranks, lambda *_: None)
    assert warmed == (used or set(serving_daemons(2, 4, ["s3://b/"])))
