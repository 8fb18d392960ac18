"""What a daemon says about a run is checked before a batch is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feedd_client._wire import feedd_pb2 as pb
from feedd_client.arrivals import Arrivals
from feedd_client.errors import ProtocolError
from feedd_client.session import Position

RUN, BATCH_BYTES, SLOT_BYTES = 4, 256, 1024


def _arrivals(start: int = 0) -> Arrivals:
    mapping = SimpleNamespace(refresh=lambda *_: None, view=lambda _at, size: np.zeros(size, np.uint8))
    granted = SimpleNamespace(batch_bytes=BATCH_BYTES, arena=SimpleNamespace(slot_bytes=SLOT_BYTES))
    session: Any = SimpleNamespace(
        run_batches=RUN,
        granted=granted,
        mapping=mapping,
        slot_count=2,
        shared_slot_count=0,
        received={},
        generations={},
    )
    return Arrivals(session, Position(0, start), 1)


def _batch(step: int, **changes: Any) -> pb.Batch:
    fields: dict[str, Any] = {"rows": 2, "size_bytes": 200, "generation": 1, **changes}
    return pb.Batch(cursor=pb.Cursor(step=step, anchor_sample=step), **fields)


def test_a_run_is_split() -> None:
    """Batches that are alike share a message; each has its step and its place."""
    arrivals = _arrivals(5)
    arrivals.take(_batch(5, alike=2, more=[_batch(8, rows=1, size_bytes=100)]))
    assert _seen(arrivals) == [(5, 0, 3, 2), (8, 768, 1, 1)]
    assert [one.anchors for one in arrivals.ready] == [((0, 5),), ((0, 8),)]
    (lease,) = {id(one.lease): one.lease for one in arrivals.ready}.values()
    assert (lease.left, lease.payload.nbytes) == (4, 868)
    arrivals.take(_batch(9, seq=1, slot=1))
    assert [one.step for one in arrivals.ready] == [5, 8, 9]


def test_equal_batches_with_messages_of_their_own_are_taken_together() -> None:
    """Successive batches that differ in their steps only are one entry, others are not."""
    arrivals = _arrivals()
    same = _batch(1).cursor
    more = [pb.Batch(cursor=pb.Cursor(step=step, anchor_sample=1), rows=2, size_bytes=200) for step in (2, 3)]
    arrivals.take(_batch(0, more=[pb.Batch(cursor=same, rows=2, size_bytes=200), *more]))
    assert _seen(arrivals) == [(0, 0, 1, 2), (1, 256, 3, 2)]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 1},
        {"regions": [pb.FieldRegion(values_at=8)]},
        {"size_bytes": 100},
        {"bad_samples": 1},
        {"filtered": 1},
        {"samples": 5},
        {"again": b"\0\1"},
    ],
)
def test_batches_that_differ_are_taken_apart(change: dict[str, Any]) -> None:
    """Each batch has its own rows, counts and marks."""
    arrivals, at = _arrivals(), pb.Cursor(step=1)
    arrivals.take(pb.Batch(rows=2, size_bytes=200, generation=1, more=[_like(at, change)]))
    assert [one.count for one in arrivals.ready] == [1, 1]


def _like(at: pb.Cursor, change: dict[str, Any]) -> pb.Batch:
    return pb.Batch(cursor=at, **{"rows": 2, "size_bytes": 200, **change})


def _seen(arrivals: Arrivals) -> list[tuple[int, int, int, int]]:
    return [(one.step, one.at, one.count, one.message.rows) for one in arrivals.ready]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_batch(0, alike=4), "at most 4 batches in a slot, got 5"),
        (_batch(0, alike=1 << 31), "at most 4 batches in a slot"),
        (_batch(0, alike=1, size_bytes=257), "at most 256 bytes in a run, got 257"),
        (_batch(0, more=[_batch(1, size_bytes=300)]), "at most 256 bytes in a run, got 300"),
        (_batch(0, more=[_batch(2)]), "expected step 1 as the run's next batch, got step 2"),
        (_batch(0, size_bytes=1025), "at most 1024 bytes"),
        (_batch(1), "expected batch 0 to be step 0"),
        (_batch(0, slot=2), "expected a slot below 2"),
    ],
)
def test_a_run_that_cannot_be_is_refused(batch: pb.Batch, message: str) -> None:
    """Nothing is read outside of the slot, and no step is passed over."""
    with pytest.raises(ProtocolError, match=message):
        _arrivals().take(batch)
