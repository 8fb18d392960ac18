"""Which member holds an entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from feedd.peers.rendezvous import holder_of
from feedd.values import ObjectRef

MEMBERS = [f"10.0.0.{number}:7072" for number in range(1, 9)]
REFS = [ObjectRef("s3://data", f"train/{number:05d}.tar", 1000 + number, f"etag{number}") for number in range(4000)]


def test_entries_are_shared_out_evenly() -> None:
    """Each of eight members holds an eighth of 4,000 entries, give or take a fifth."""
    counts = Counter(holder_of(MEMBERS, ref) for ref in REFS)
    assert set(counts) == set(MEMBERS)
    assert all(400 <= count <= 600 for count in counts.values()), counts


def test_the_order_of_members_does_not_matter() -> None:
    """Members that learn of each other in another order agree."""
    assert [holder_of(MEMBERS, ref) for ref in REFS] == [holder_of(MEMBERS[::-1], ref) for ref in REFS]


def test_a_member_that_leaves_moves_its_own_entries_only() -> None:
    """All other entries stay where they are, and the moved ones go to all that remain."""
    gone, *left = MEMBERS
    moved: Counter[str | None] = Counter()
    for ref in REFS:
        before, after = holder_of(MEMBERS, ref), holder_of(left, ref)
        assert before in {gone, after}
        moved[after] += before == gone
    assert set(moved) == set(left)
    assert all(moved.values())


def test_another_version_may_have_another_holder() -> None:
    """Everything that names an entry counts: a pack and a span differ from others by their etag only."""
    ref = REFS[0]
    assert len({holder_of(MEMBERS, replace(ref, etag=f"span-{number}")) for number in range(100)}) == len(MEMBERS)


def test_no_member_holds_nothing() -> None:
    """Without members there is no holder."""
    assert holder_of([], REFS[0]) is None
