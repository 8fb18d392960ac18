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
    assert [(one.step, one.at, one.message.rows) for one in arrivals.ready] == [
        (5, 0, 2),
        (6, 256, 2),
        (7, 512, 2),
        (8, 768, 1),
    ]
    assert [one.anchors for one in arrivals.ready] == [((0, 5),)] * 3 + [((0, 8),)]
    (lease,) = {id(one.lease): one.lease for one in arrivals.ready}.values()
    assert (lease.left, lease.payload.nbytes) == (4, 868)
    arrivals.take(_batch(9, seq=1, slot=1))
    assert [one.step for one in arrivals.ready] == [5, 6, 7, 8, 9]


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
