"""Which daemon of a node serves a rank: pure, and the same on both sides."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd import values
from feedd.config.types import lane_address as daemons_address
from feedd.lanes.lane_choice import serving_daemons
from feedd.open_spec import OrderSpec
from feedd_client.topology import Topology, daemon_of, in_lane, planned_lanes
from feedd_client.transport import lane_address, parse_address


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
