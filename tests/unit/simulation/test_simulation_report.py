"""Figures of all nodes from those of some: sums, prices, and which nodes are simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedd.dataset.listing import Listing
from feedd.simulation.simulated_job import simulate
from feedd.simulation.simulation_report import Prices, SimulationReport, chosen_nodes, node_loads, report_of
from feedd.values import ObjectRef
from tests.unit.simulation.jobs import MIB, listing, scenario

_PRICES = Prices(get=1.0, list=10.0, gib=1024.0)


def _report(nodes: tuple[int, ...], node_count: int = 4, **changes: Any) -> SimulationReport:
    job = replace(scenario(**{"node_count": node_count, "step_s": 1.0, **changes}), nodes=nodes)
    return report_of(job, simulate(job), node_loads(job.view.listing, job.job), _PRICES)


def test_figures_of_all_nodes_follow_from_some() -> None:
    """Of four equal nodes, one tells as much as all: requests, bytes and cost are those of the whole dataset."""
    one, all_ = _report((2,)), _report((0, 1, 2, 3))
    assert one.epochs == all_.epochs
    (epoch,) = one.epochs
    assert (epoch.gets, epoch.heads, epoch.lists, epoch.fetched_bytes) == (16, 16, 4, 16 * MIB)
    assert epoch.cost == pytest.approx(0.032 * 1.0 + 0.004 * 10.0 + 16 / 1024 * 1024.0)
    assert one.requests == 36
    assert one.cost == pytest.approx(epoch.cost)


def test_figures_of_a_job() -> None:
    """Four steps of 4 nodes after the first batch at 1 s; trainers work all the time."""
    found = _report((0,))
    assert (found.steps, found.samples, found.objects, found.bytes) == (4, 4 * 4 * 32, 16, 16 * MIB)
    figures = [found.first_batch_s, found.run_s, found.samples_s, found.utilisation]
    assert figures == pytest.approx([1.0, 4.0, 128.0, 1.0])
    assert (found.hit_rate, found.skew) == (0.0, 0.0)


def test_trainers_work_at_most_all_the_time() -> None:
    """Sums of steps of 2.3 s are a rounding above the time that they took."""
    assert _report((0,), epoch_count=6, step_s=2.3).utilisation == 1.0


def test_later_epochs_count_apart() -> None:
    """The second epoch of a cache that holds all: everything is found, nothing is asked for or paid."""
    first, second = _report((0,), epoch_count=2).epochs
    assert (first.hit_rate, second.hit_rate) == (0.0, 1.0)
    assert (second.requests, second.cost, second.evictions) == (0, 0.0, 0)


@pytest.mark.parametrize(
    ("sharding", "loads"), [("key", [4, 6]), ("size", [5, 5]), ("replicated", [10, 10]), ("sample", [5, 5])]
)
def test_loads_of_nodes(sharding: str, loads: list[int]) -> None:
    """Shards of 1, 2, 3 and 4 bytes on two nodes."""
    data = Listing.of([ObjectRef("s3://b", f"{size}.tar", size, "e") for size in range(1, 5)], 0.0)
    job = replace(scenario().job, node_count=2, sharding=sharding)
    assert node_loads(data, job).tolist() == loads


def test_the_fullest_first_and_last_nodes_are_simulated() -> None:
    """Then others, at random, by a seed; never a node twice."""
    loads = np.ones(1000, np.int64)
    loads[77] = 2
    assert chosen_nodes(loads, 3, 0) == (0, 77, 999)
    some, others = chosen_nodes(loads, 6, 0), chosen_nodes(loads, 6, 1)
    assert {0, 77, 999} < set(some)
    assert len(set(some)) == 6
    assert (some == chosen_nodes(loads, 6, 0), some == others) == (True, False)
    assert chosen_nodes(loads, 1, 0) == (77,)
    assert chosen_nodes(np.ones(2, np.int64), 8, 0) == (0, 1)


def test_skew_is_of_the_fullest_node() -> None:
    """Three shards for two nodes: one reads twice as much, a third above the mean."""
    job = replace(scenario(listing(shards=3), node_count=2, step_s=2.0), nodes=(0, 1))
    found = report_of(job, simulate(job), node_loads(job.view.listing, job.job), _PRICES)
    assert found.skew == pytest.approx(1 / 3)
    assert found.node_bytes.tolist() == [MIB, 2 * MIB]
    fullest = replace(job, nodes=(0,), list_requests=10)
    (epoch,) = report_of(fullest, simulate(fullest), node_loads(job.view.listing, job.job), _PRICES).epochs
    assert (epoch.gets, epoch.fetched_bytes, epoch.lists) == (3, 3 * MIB, 20)  # by bytes, and by nodes
