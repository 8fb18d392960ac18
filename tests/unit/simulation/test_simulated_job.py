"""Whole jobs in virtual time: exact figures of small jobs, and the real machines inside."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.cache.index import EvictionOrder
from feedd.cache.prefetch import PrefetchLimits
from feedd.errors import BadRequest, CacheTooSmall
from feedd.simulation.simulated_job import simulate
from feedd.values import ObjectRef
from tests.unit.simulation.jobs import MIB, listing, scenario

if TYPE_CHECKING:
    from feedd.cache.index import Entry


def test_the_store_is_the_limit() -> None:
    """A link of 1 MiB a second, 16 shards of a batch each: the first batch after 1 s, the last one after 16 s."""
    run = simulate(scenario(link_bytes_s=MIB))
    assert run.steps == 16
    assert run.first_batch_s == pytest.approx(1.0)
    assert list(run.epoch_ends_s) == pytest.approx([16.0])
    (counts,) = run.nodes[0].counts
    assert (counts.gets, counts.heads, counts.lists, counts.fetched_bytes) == (16, 16, 1, 16 * MIB)


def test_the_trainer_is_the_limit() -> None:
    """Steps of 2 s wait for the first shard only; the fetches of the others hide behind them."""
    run = simulate(scenario(step_s=2.0))
    assert list(run.epoch_ends_s) == pytest.approx([1.0 + 16 * 2.0])
    assert run.step_waits_s.tolist() == [0.0] * 16
    assert run.nodes[0].wait_s == 0.0


def test_the_workers_are_the_limit() -> None:
    """A batch takes 6.4 CPU-seconds. Both workers share the first one; then each decodes one of 15, 8 times."""
    run = simulate(scenario(decode_s=0.2, workers=2))
    assert run.first_batch_s == pytest.approx(1.0 + 3.2)
    assert list(run.epoch_ends_s) == pytest.approx([1.0 + 3.2 + 8 * 6.4])
    assert run.nodes[0].counts[-1].decode_s == pytest.approx(16 * 6.4)


def test_the_first_batch_is_no_wait() -> None:
    """Steps are longer than decoding, so trainers wait for the first batch only, and that is a figure of its own."""
    run = simulate(scenario(decode_s=0.2, step_s=100.0))
    assert run.first_batch_s == pytest.approx(1.0 + 6.4)
    assert run.nodes[0].wait_s == 0.0


def test_a_step_waits_at_most_for_its_own_decode() -> None:
    """One sample cannot be shared by workers: 100 samples in batches of one, decoded by four workers at a time."""
    one = scenario(listing(shards=1, samples=8), batch_size=1, decode_s=1.0, workers=4, prefetch=8)
    assert simulate(one).first_batch_s == pytest.approx(2.0)


@pytest.mark.parametrize(("prefetch", "slots_max", "end_s"), [(8, 64, 3.0), (2, 64, 8.0), (8, 2, 8.0)])
def test_slots_bound_the_batches_in_the_making(prefetch: int, slots_max: int, end_s: float) -> None:
    """Eight batches of a second, four workers: with two slots, a batch is made while the trainer holds another."""
    one = scenario(listing(shards=1, samples=8), batch_size=1, decode_s=1.0, workers=4, prefetch=prefetch)
    assert list(simulate(replace(one, slots_max=slots_max)).epoch_ends_s) == pytest.approx([end_s])


def test_the_first_batch_waits_for_requests_open_index_and_decode() -> None:
    """Of an open's work of 10 s, 8 s come first, 1 s follows the shard, and 1 s is part of the first rows' decode."""
    one = scenario(latency_s=0.5, open_s=10.0, index_s=0.1, decode_s=0.2)
    assert simulate(one).first_batch_s == pytest.approx(8.0 + 0.5 + 0.5 + 1.0 + 3.2 + 1.0 + 1.0 + 6.4)


@pytest.mark.parametrize(
    ("ranks", "workers", "longer_s"), [(1, 1, 0.0), (1, 2, 0.0), (2, 2, 0.5), (2, 1, 3.0), (4, 2, 4.0)]
)
def test_further_ranks_open_later(ranks: int, workers: int, longer_s: float) -> None:
    """Of an open's work of 10 s, the daemon repeats 0.5 s for each; 2.5 s take turns if ranks exceed cores."""
    one = scenario(open_s=10.0, rank_count=ranks, workers=workers, batch_size=8)
    assert simulate(one).first_batch_s == pytest.approx(8.0 + 1.0 + 1.0 + longer_s)


def test_the_first_batch_has_the_link_for_itself() -> None:
    """It needs two shards of 0.1 s. Later batches need later windows, so their shards do not share the link with it."""
    small = listing(size_bytes=MIB // 10)
    run = simulate(scenario(small, batch_size=64, link_bytes_s=MIB, prefetch=3, window_shards=1))
    assert run.first_batch_s == pytest.approx(0.2, rel=1e-4)
    assert list(run.epoch_ends_s) == pytest.approx([1.6], rel=1e-4)


def test_shards_of_the_next_batch_arrive_during_a_decode() -> None:
    """Each batch has two shards of 0.1 s and 0.5 s of decode: only the first one's shards are waited for."""
    small = listing(size_bytes=MIB // 10)
    run = simulate(scenario(small, batch_size=64, link_bytes_s=MIB, prefetch=3, window_shards=1, decode_s=0.5 / 64))
    assert list(run.epoch_ends_s) == pytest.approx([0.2 + 8 * 0.5], rel=1e-4)


def test_ranks_take_turns_with_a_worker() -> None:
    """Four batches of a second for each rank: two of the first rank begin, a third follows, then the second rank's."""
    run = simulate(scenario(listing(shards=1, samples=512), rank_count=2, batch_size=64, decode_s=1 / 64))
    assert run.first_batch_s == pytest.approx(1.0 + 4.0)


def test_sidecars_are_read_before_the_data() -> None:
    """An index of 2 MiB delays the first batch by 2 s, and takes a GET and a HEAD."""
    run = simulate(replace(scenario(), sidecars=(ObjectRef("s3://b", "index", 2 * MIB, "e"),)))
    assert run.first_batch_s == pytest.approx(3.0)
    assert (run.nodes[0].counts[-1].gets, run.nodes[0].counts[-1].heads) == (17, 17)


def test_a_cache_of_all_data_is_filled_once() -> None:
    """The second epoch sends no request, and never waits."""
    run = simulate(scenario(epoch_count=2, step_s=0.5))
    first, second = run.nodes[0].counts
    assert (second.gets, second.fetched_bytes) == (first.gets, first.fetched_bytes) == (16, 16 * MIB)
    assert run.epoch_ends_s[1] - run.epoch_ends_s[0] == pytest.approx(16 * 0.5)
    assert run.nodes[0].cached_bytes == pytest.approx(16 * MIB, rel=0.01)


def test_a_small_cache_is_evicted_and_never_exceeded() -> None:
    """A cache of 5 shards holds no more, and later epochs fetch again."""
    small = 5 * (MIB + 4096)
    run = simulate(scenario(epoch_count=3, step_s=2.0, cache_bytes=small, shuffle=True, window_shards=1))
    first, *_, last = run.nodes[0].counts
    assert last.fetched_bytes > 2 * first.fetched_bytes
    assert last.evictions > 0
    assert run.nodes[0].cached_bytes <= small


def test_ranks_of_a_node_share_its_shards() -> None:
    """Two ranks take half of each shard in every step: the same requests as one rank, half of the steps."""
    run = simulate(scenario(rank_count=2, batch_size=16, link_bytes_s=MIB))
    assert run.steps == 16
    assert list(run.epoch_ends_s) == pytest.approx([16.0])
    assert run.nodes[0].counts[-1].gets == 16
    assert run.nodes[0].wait_s == pytest.approx(15.0), "of a rank"


def test_ranks_read_an_index_once() -> None:
    """Both ranks need all 16 shards, with an index of 32 s each."""
    run = simulate(scenario(rank_count=2, batch_size=16, index_s=1.0))
    assert run.nodes[0].counts[-1].decode_s == pytest.approx(16 * 32.0)


def test_all_nodes_wait_for_the_slowest() -> None:
    """Node 1 has shards of twice the size: the first step waits for them, 2 s, and all steps are taken together."""
    refs = [ObjectRef("s3://b", f"{number:04d}.tar", MIB * (1 + number % 2), "e") for number in range(16)]
    data = type(listing()).of(refs, 0.0)
    data.add_counts(dict.fromkeys(range(16), 32), {}, ())
    run = simulate(replace(scenario(data, node_count=2, step_s=1.0), nodes=(0, 1)))
    fast, slow = run.nodes
    assert (fast.assigned_bytes, slow.assigned_bytes) == (8 * MIB, 16 * MIB)
    assert run.first_batch_s == pytest.approx(2.0)
    assert list(run.epoch_ends_s) == pytest.approx([2.0 + 8 * 1.0])
    assert run.steps == 8


@pytest.mark.parametrize(("sharding", "shards"), [("key", 8), ("size", 8), ("replicated", 16), ("sample", 8)])
def test_every_sharding_is_simulated(sharding: str, shards: int) -> None:
    """Of 16 shards two nodes get half each, or all of them."""
    run = simulate(replace(scenario(node_count=2, sharding=sharding), nodes=(0, 1)))
    assert [node.assigned_shards for node in run.nodes] == [shards] * 2
    assert [node.counts[-1].fetched_bytes for node in run.nodes] == [shards * MIB] * 2
    assert run.steps == shards


def test_a_store_that_refuses_requests_slows_the_job_down() -> None:
    """A request each second for all: requests are refused, sent again, and the job ends later."""
    free, limited = (simulate(scenario(requests_s=rate)) for rate in (0.0, 1.0))
    assert free.nodes[0].counts[-1].refused == 0 < limited.nodes[0].counts[-1].refused
    assert limited.epoch_ends_s[0] > 2 * free.epoch_ends_s[0]
    assert limited.nodes[0].counts[-1].fetched_bytes == 16 * MIB


def test_the_simulated_nodes_get_their_share_of_the_requests() -> None:
    """One of two nodes is simulated, so half of the store's requests are for it."""
    alone = scenario(requests_s=2.0)
    half = replace(alone, job=replace(alone.job, node_count=2), nodes=(0,))
    one = simulate(scenario(listing(shards=8), requests_s=1.0))
    assert simulate(half).nodes[0].counts == one.nodes[0].counts


def test_equal_scenarios_give_equal_results() -> None:
    """Also with refused requests, whose waits are drawn at random."""
    runs = []
    for seed in (1, 2):
        random.seed(seed)
        before = random.getstate()
        runs.append(simulate(scenario(listing(shards=64), requests_s=8.0, step_s=0.01)))
        assert random.getstate() == before
    assert runs[0].nodes[0].counts[-1].refused > 0
    assert runs[0] == runs[1]


def test_parts_grow_where_the_first_byte_is_late() -> None:
    """The daemon learns the size of parts from their times: 8 parts of a 64 MiB shard at first, then 4 larger ones."""
    large = listing(shards=32, size_bytes=64 * MIB)
    far = scenario(large, latency_s=1.0, link_bytes_s=1e12, connection_bytes_s=64e6, step_s=1.0)
    gets = simulate(far).nodes[0].counts[-1].gets
    assert 4 * 32 <= gets < 6 * 32


def test_later_shards_wait_for_the_first_batch_only() -> None:
    """The daemon fetches later shards when the first batch is made, not a second after the open."""
    soon = scenario(listing(size_bytes=MIB // 10), step_s=0.0, link_bytes_s=64 * MIB)
    assert simulate(soon).epoch_ends_s[0] == pytest.approx(0.2, rel=1e-4)


def test_as_many_shards_are_fetched_in_advance_as_requests_may_run() -> None:
    """16 small shards, 1 s each: the first alone, the other 15 together."""
    assert simulate(scenario(prefetch=2)).epoch_ends_s[0] == pytest.approx(2.0)


def test_small_shards_are_announced_as_far_ahead_as_the_daemon_does() -> None:
    """64 small shards, a second away: the first alone, the others together, as far as requests go."""
    far = scenario(listing(shards=64, size_bytes=1000), latency_s=1.0, prefetch=2)
    wide = replace(far, fetch=replace(far.fetch, parts_in_flight=64, pinned=True))
    assert simulate(wide).epoch_ends_s[0] == pytest.approx(3.0, abs=0.1)  # with the listing


def test_the_cache_decides_as_the_daemon_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """If entries that are needed soonest were evicted first, later epochs would find less."""
    half = scenario(listing(shards=64), epoch_count=3, cache_bytes=32 * (MIB + 4096), shuffle=True, step_s=2.0)
    good = simulate(half).nodes[0].counts[-1].fetched_bytes
    push = EvictionOrder._push

    def wrongly(self: EvictionOrder, entry: Entry) -> None:
        use, entry.next_use = entry.next_use, 0.0  # least recently used first
        push(self, entry)
        entry.next_use = use

    monkeypatch.setattr(EvictionOrder, "_push", wrongly)
    assert simulate(half).nodes[0].counts[-1].fetched_bytes > 1.1 * good


def test_prefetching_is_the_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fills in advance, each step waits for its own shard; with them, no step after the first does."""
    far = scenario(latency_s=4.0, step_s=1.0, prefetch=2)
    ahead = simulate(far)
    monkeypatch.setattr(PrefetchLimits, "admit", lambda *_: False)
    assert simulate(far).epoch_ends_s[0] > 1.5 * ahead.epoch_ends_s[0]


def test_a_cache_without_room_for_a_window_is_an_error() -> None:
    """As in the daemon, and named by its own error."""
    with pytest.raises(CacheTooSmall, match="1 shard of 1MiB"):
        simulate(scenario(cache_bytes=MIB // 2))


def test_a_job_without_a_step_is_an_error() -> None:
    """A step of all ranks takes more samples than there are."""
    with pytest.raises(BadRequest, match="1024 for each of 1 ranks, got fewer") as caught:
        simulate(scenario(batch_size=1024))
    assert "--batch-size" in caught.value.hint


def test_unknown_nodes_are_refused() -> None:
    """Nodes to simulate are nodes of the job."""
    with pytest.raises(BadRequest, match="nodes of 1"):
        replace(scenario(), nodes=(1,))
