"""Shards for Ray tasks: all of them once, in tasks of a useful size, with what the listing tells about each."""

from __future__ import annotations

import pickle

import pytest

from feedd.dataset.listing import Listing
from feedd.prepare.count_on_ray import Shards, tasks_of
from feedd.units import GIB, KIB, MIB
from feedd.values import ObjectRef


def _listing(*sizes: int) -> Listing:
    return Listing.of(tuple(ObjectRef("s3://b", f"{n:06d}", size, f"e{n}") for n, size in enumerate(sizes)), 0.0)


@pytest.mark.parametrize(
    ("sizes", "longest", "task_count"),
    [
        ([KIB] * 3000, 1024, 3),
        ([10 * MIB] * 100, 2, 50),
        ([GIB] * 3, 1, 3),
        ([GIB] * 10_000, 4, 2500),
        ([], 0, 0),
    ],
    ids=["small", "16 MiB", "few and large", "many and large", "none"],
)
def test_the_size_of_tasks(sizes: list[int], longest: int, task_count: int) -> None:
    """At least 16 MiB and at most 4 GiB or 1,024 shards, and every shard once."""
    listing = _listing(*sizes)
    found = list(tasks_of(listing, range(len(sizes))))
    assert [number for task in found for number in task.numbers] == list(range(len(sizes)))
    assert max((len(task.numbers) for task in found), default=0) == longest
    assert len(found) == task_count


def test_a_task_knows_what_the_listing_tells() -> None:
    """Formats and sizes of sidecars move with their shards, through the pickles in which Ray sends them."""
    listing = _listing(1, 2, 3, 4)
    listing.named, listing.formats, listing.idx_bytes = {1: "tar", 2: "npy"}, {3: "mds"}, {2: 77}
    (task,) = tasks_of(listing, [2, 3])
    sent: Shards = pickle.loads(pickle.dumps(task))
    found = sent.listing()
    assert [ref.key for ref in found.refs] == ["000002", "000003"]
    assert (found.named, found.formats, found.idx_bytes) == ({0: "npy"}, {1: "mds"}, {0: 77})
