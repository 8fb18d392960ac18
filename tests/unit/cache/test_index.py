"""Eviction order and the rules of reservation, case by case."""

from __future__ import annotations

import math
import random

import pytest

from feedd.cache import entry_layout
from feedd.cache.index import CacheIndex, Entry, EvictionOrder, FullNow, Quotas, Reservation, TooLarge
from feedd.cache.os_errors import too_small
from feedd.cache.storage import Names
from feedd.values import ObjectRef
from tests.fakes.next_uses import ToldUses, note_next_use

PAGE = entry_layout.PAGE_BYTES


def ref(name: str, pages: int = 1) -> ObjectRef:
    """Return an object of so many pages."""
    return ObjectRef("s3://b", name, pages * PAGE, "e")


def take(index: CacheIndex, *refs: ObjectRef) -> Reservation:
    """Bring objects in and leave them unpinned."""
    reservation = index.reserve_all(refs)
    assert isinstance(reservation, Reservation)
    for entry in reservation.missing:
        index.commit(entry)
    for entry in reservation.entries:
        index.unpin(entry)
    return reservation


def names(reservation: Reservation) -> list[str]:
    """Return the keys of what a claim evicted."""
    return [entry.ref.key for entry in reservation.evicted]


def test_furthest_use_goes_first_then_least_recently_used() -> None:
    """Never-needed entries go first, by age; then the furthest next use, ties by age."""
    index = CacheIndex(12 * PAGE)
    for name in "abcdef":
        take(index, ref(name))
    note_next_use(index, [(ref("a"), 3.0), (ref("b"), 7.0), (ref("c"), 7.0)])
    take(index, ref("d"))
    assert names(take(index, ref("x", 5))) == ["e", "f", "d"]
    assert names(take(index, ref("y", 5))) == ["x"]
    assert names(take(index, ref("z", 7))) == ["y", "b"]


def test_full_now_and_too_large_are_told_apart() -> None:
    """What pins stand in the way of may come later; what exceeds the limit never fits."""
    index = CacheIndex(4 * PAGE)
    held = index.reserve_all([ref("a"), ref("b")])
    assert isinstance(held, Reservation)
    assert index.reserve_all([ref("c")]) == FullNow(2 * PAGE)
    assert index.reserve_all([ref("a"), ref("b"), ref("c")]) == TooLarge(6 * PAGE, 4 * PAGE)
    assert index.reserve_early(ref("huge", 4)) == TooLarge(5 * PAGE, 4 * PAGE)
    assert index.pin_count == 2


def test_full_now_changes_nothing() -> None:
    """A refused claim evicts nobody, even where some could have gone."""
    index = CacheIndex(6 * PAGE)
    take(index, ref("idle"))
    assert isinstance(index.reserve_all([ref("held")]), Reservation)
    assert isinstance(index.reserve_all([ref("new", 4)]), FullNow)
    assert {entry.ref.key for entry in index} == {"idle", "held"}


def test_claim_never_evicts_what_it_claims() -> None:
    """The entries asked for stay, even when they are first in line for eviction."""
    index = CacheIndex(6 * PAGE)
    for name in "abc":
        take(index, ref(name))
    note_next_use(index, [(ref("b"), 1.0), (ref("c"), 2.0)])
    assert names(take(index, ref("a"), ref("d"))) == ["c"]


def test_next_use_told_before_the_object_is_here() -> None:
    """Positions noted for absent objects hold once they come, until they are set to never."""
    index = CacheIndex(4 * PAGE)
    note_next_use(index, [(ref("soon"), 1.0), (ref("late"), 9.0)])
    take(index, ref("late"), ref("soon"))
    assert index.reserve_early(ref("unknown")) == FullNow(2 * PAGE)
    note_next_use(index, [(ref("soon"), math.inf)])
    assert names(take(index, ref("x"))) == ["soon"]


def test_nan_is_refused() -> None:
    """A position that cannot be ordered would corrupt the eviction order."""
    index = CacheIndex(2 * PAGE)
    note_next_use(index, [(ref("a"), math.nan)])
    with pytest.raises(ValueError, match="s3://b/a"):
        index.reserve_all([ref("a")])


def test_order_stays_small_under_endless_changes() -> None:
    """Stale tickets are thrown away: a million position changes of few entries take bounded memory."""
    order = EvictionOrder()
    entries = [Entry(ref(str(index)), PAGE) for index in range(10)]
    for entry in entries:
        order.add(entry)
    rng = random.Random(0)
    for _ in range(5_000):
        entry = rng.choice(entries)
        entry.next_use = rng.random()
        order.move(entry)
        assert len(order._lanes[""].heap) <= 2 * len(entries) + 64 + 1
    taken = order.take(10 * PAGE, after=-math.inf)
    assert taken == sorted(entries, key=lambda entry: -entry.next_use)
    assert order.idle_bytes == 0


def test_kept_entries_stay_in_their_place() -> None:
    """Entries spared in one take are first in line in the next."""
    order = EvictionOrder()
    spared, other = Entry(ref("spared"), PAGE, next_use=9.0), Entry(ref("other"), PAGE, next_use=1.0)
    order.add(spared)
    order.add(other)
    assert order.take(PAGE, after=-math.inf, keep={spared}) == [other]
    assert order.take(2 * PAGE, after=-math.inf) is None
    assert order.take(PAGE, after=-math.inf) == [spared]


def test_quota_evicts_inside_its_group_only() -> None:
    """A dataset at its quota replaces its own shards, however late they are needed elsewhere; others stay."""
    index = CacheIndex(20 * PAGE, Quotas({"s3://b/small/": 4 * PAGE}))
    for name in ("small/a", "small/b", "other/a", "other/b"):
        take(index, ref(name))
    note_next_use(index, [(ref("small/a"), 5.0), (ref("small/b"), 4.0)])
    assert names(take(index, ref("small/c"))) == ["small/a"]
    assert names(take(index, ref("small/b"), ref("other/c"))) == []


def test_longest_prefix_is_the_quota_that_counts() -> None:
    """An object counts against one quota only, the most specific one."""
    quotas = Quotas({"s3://b/": 8 * PAGE, "s3://b/train/": 2 * PAGE})
    assert [quotas.group(ref(name)) for name in ("train/a", "trainer", "x")] == ["s3://b/train/", "s3://b/", "s3://b/"]
    assert quotas.group(ObjectRef("s3://bb", "train/a", 1, "e")) == ""


def test_larger_than_the_quota_is_not_full_now() -> None:
    """What a quota can never hold names the quota; what its pins stand in the way of may come later."""
    index = CacheIndex(20 * PAGE, Quotas({"s3://b/q/": 4 * PAGE}))
    assert index.reserve_all([ref("q/a", 4)]) == TooLarge(5 * PAGE, 4 * PAGE, "s3://b/q/")
    assert isinstance(index.reserve_all([ref("q/a"), ref("q/b")]), Reservation)
    assert index.reserve_all([ref("q/c")]) == FullNow(2 * PAGE, "s3://b/q/")
    assert index.reserve_early(ref("q/c")) == FullNow(2 * PAGE)
    error = too_small([ref("q/a", 4)], TooLarge(5 * PAGE, 4 * PAGE, "s3://b/q/"), Names("memory", "memory", "", ""))
    assert str(error).startswith("1 shard of 20KiB does not fit into the quota of s3://b/q/, which is 16KiB")
    assert 'raise cache.quotas."s3://b/q/"' in str(error)
    assert error.object == "s3://b/q/a"


@pytest.mark.parametrize("limits", [{"": 1}, {"s3://b/": 0}])
def test_quotas_without_meaning_are_refused(limits: dict[str, int]) -> None:
    """A quota needs a prefix and a size."""
    with pytest.raises(ValueError, match="expected"):
        Quotas(limits)


def test_if_any_use_may_have_changed_entries_are_looked_at() -> None:
    """A dataset of a million shards costs a cache as much as the cache has entries."""
    index = CacheIndex(4 * PAGE)
    take(index, ref("a"))
    take(index, ref("b"))
    told = ToldUses()
    told.tell([(ref("a"), 9.0), (ref("b"), 3.0), (ref("x"), 1.0)])
    index.note_next_use(told.times)
    assert names(take(index, ref("x"))) == ["a"]
    assert {entry.ref.key: entry.next_use for entry in index} == {"b": 3.0, "x": 1.0}
