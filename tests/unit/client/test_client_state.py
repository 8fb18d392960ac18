"""Resume positions: exact at every step, small, and refused where they belong to another run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import DatasetChanged, StateError, Topology
from tests.fakes.feed_client import BATCH_SIZE, ids

if TYPE_CHECKING:
    from tests.fakes.feed_client import Bench


def test_resume_is_exact_at_every_step(bench: Bench) -> None:
    """Whatever the step a state is taken at, the rest of the epoch and the next epoch follow without gap or repeat."""
    server = bench.server(steps=4, last_rows=3)
    whole = bench.dataset(server, copy=True)
    wanted = [ids(batch) for _ in range(2) for batch in whole]
    for taken in range(5):
        dataset = bench.dataset(server, copy=True)
        batches = iter(dataset)
        seen = [ids(next(batches)) for _ in range(taken)]
        text = json.dumps(dataset.state_dict())
        assert len(text) < 1000
        resumed = bench.dataset(server, copy=True)
        resumed.load_state_dict(json.loads(text))
        seen += [ids(batch) for batch in resumed]
        seen += [ids(batch) for batch in resumed]
        assert seen == wanted
    assert server.starts[-2].next.anchor_window == 1  # the anchor of the last batch taken came along


def test_resume_of_single_samples_is_exact_inside_a_batch(bench: Bench) -> None:
    """With batch_size=None a state may be taken between any two samples."""
    server = bench.server(steps=2, last_rows=2)
    for taken in (0, 1, 63, 64, 65, 66):
        dataset = bench.dataset(server, batch_size=None, copy=True)
        batches = iter(dataset)
        seen = [int(next(batches)["cls"]) for _ in range(taken)]
        resumed = bench.dataset(server, batch_size=None, copy=True)
        resumed.load_state_dict(dataset.state_dict())
        seen += [int(sample["cls"]) for sample in resumed]
        assert seen == list(range(66))


def test_a_state_of_another_run_is_refused_with_the_difference(bench: Bench) -> None:
    """Another seed, batch size, recipe, shuffle or sharding is an error that shows both values."""
    server = bench.server(steps=2)
    state = bench.dataset(server).state_dict()
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"batch_size": None},
        {"fields": {"cls": "int"}},
        {"shuffle": True},
        {"sharding": "size"},
    ]
    for change in changes:
        with pytest.raises(StateError) as caught:
            bench.dataset(server, **change).load_state_dict(state)
        assert caught.value.object == next(iter(change))
    for damage in (
        {"version": 1},
        {"anchors": "1"},
        {"anchors": [[1, 2]]},
        {"step": -1},
        {"epoch": "x"},
        {"fingerprint": "zz"},
    ):
        with pytest.raises(StateError):
            bench.dataset(server).load_state_dict({**state, **damage})


def test_a_state_needs_the_same_ranks_but_not_the_same_rank(bench: Bench) -> None:
    """Another number of ranks is refused; another rank's state works, without the anchor if of another node."""
    server = bench.server(steps=6)
    here = Topology(4, 0, 2, 0, 2, 0)
    dataset = bench.dataset(server, topology=here, uneven="allow")
    batches = iter(dataset)
    for _ in range(3):
        next(batches)
    state = dataset.state_dict()
    for topology, anchor in ((Topology(4, 1, 2, 1, 2, 0), 1), (Topology(4, 2, 2, 0, 2, 1), 0)):
        other = bench.dataset(server, topology=topology, uneven="allow")
        other.load_state_dict(state)
        next(iter(other))
        assert (server.starts[-1].next.step, server.starts[-1].next.anchor_window) == (3, anchor)
    other = bench.dataset(server, topology=Topology(2, 0, 2, 0, 1, 0), uneven="allow")
    other.load_state_dict(state)
    with pytest.raises(StateError, match="step_samples"):
        iter(other)


def test_a_state_serves_any_ranks_that_take_the_same_together(bench: Bench) -> None:
    """With the same partitions and the same samples in a step of all ranks, nodes and ranks may be others."""
    server = bench.server(steps=6)
    dataset = bench.dataset(server, topology=Topology(4, 0, 2, 0, 2, 0), uneven="allow", partitions=4)
    batches = iter(dataset)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(dataset.state_dict()))
    for topology, batch_size in ((Topology(2, 1, 2, 1, 1, 0), 8), (Topology(4, 3, 1, 0, 4, 3), 4), (Topology(), 16)):
        other = bench.dataset(server, topology=topology, uneven="allow", partitions=4, batch_size=batch_size)
        other.load_state_dict(state)
        next(iter(other))
        assert (server.starts[-1].next.step, server.starts[-1].next.anchor_window) == (3, 0)
    other = bench.dataset(server, topology=Topology(), uneven="allow", partitions=4, batch_size=8)
    other.load_state_dict(state)
    with pytest.raises(StateError, match="step_samples"):
        iter(other)


def test_a_state_of_other_data_is_refused_when_the_pass_begins(bench: Bench) -> None:
    """A changed dataset under a loaded state is an error, not a silent mixture."""
    dataset = bench.dataset(bench.server(steps=3))
    next(iter(dataset))
    changed = bench.server(steps=3, fingerprints={0: b"another-dataset!"})
    resumed = bench.dataset(changed)
    resumed.load_state_dict(dataset.state_dict())
    with pytest.raises(DatasetChanged, match="fingerprint"):
        iter(resumed)


def test_set_epoch_keeps_a_loaded_position_of_that_epoch_only(bench: Bench) -> None:
    """Training loops call set_epoch after loading: the same epoch resumes, another one begins at its start."""
    server = bench.server(steps=4)
    dataset = bench.dataset(server, copy=True)
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    for epoch, first in ((0, BATCH_SIZE), (1, 100_000_000)):
        resumed = bench.dataset(server, copy=True)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert ids(next(iter(resumed)))[0] == first
