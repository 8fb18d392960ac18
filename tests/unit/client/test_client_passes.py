"""Passes over a dataset: order, content, when slots go back, epochs."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import BadOptionError, DaemonUnreachable, Ragged, Shuffle, Topology, session
from tests.budget import PATIENT_S
from tests.fakes.feed_client import BATCH_SIZE, check_rich, ids
from tests.fakes.feed_script import Fault

if TYPE_CHECKING:
    from tests.fakes.feed_client import Bench

EPOCH = 100_000_000


def test_batches_come_in_order_with_every_kind_of_field(bench: Bench) -> None:
    """Dense, ragged, shaped ragged, text and JSON fields arrive as the daemon laid them out, in step order."""
    dataset = bench.dataset(bench.server(steps=4, last_rows=2), keys=True)
    seen: list[int] = []
    for batch in dataset:
        check_rich(batch, ids(batch))
        seen += ids(batch)
    assert seen == list(range(3 * BATCH_SIZE + 2))


def test_a_slot_goes_back_once_nobody_holds_its_batch(bench: Bench) -> None:
    """A batch stays intact while it is held, also beyond the next one; dropped, its slot goes back with the next."""
    server = bench.server(steps=4, slot_count=4)
    batches = iter(bench.dataset(server))
    first, second = next(batches), next(batches)
    third = next(batches)
    server.wait_for(lambda: server.leased_count == 4)
    assert server.releases == []
    check_rich(first, list(range(BATCH_SIZE)))
    check_rich(second, ids(second))
    del first, second
    fourth = next(batches)
    batches.return_now()  # type: ignore[attr-defined]  # of a FeedIterator
    server.wait_for(lambda: len(server.releases) == 2)
    check_rich(third, ids(third))
    check_rich(fourth, ids(fourth))


def test_a_quick_daemon_is_asked_for_many_batches_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While batches come quickly, each request returns a third of the slots; every batch still comes."""
    monkeypatch.setattr(session, "QUICK_S", math.inf)
    server = bench.server(steps=61, slot_count=12)
    assert [ids(batch)[0] // BATCH_SIZE for batch in bench.dataset(server, keys=True, prefetch=12)] == list(range(61))
    assert server.request_count <= 61 // 4 + 2


def test_a_daemon_that_needs_time_gets_every_free_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the client waits for a batch that is not quick, the daemon may fill all slots but those in use."""
    monkeypatch.setattr(session, "QUICK_S", 0.0)
    server = bench.server(steps=30, slot_count=12, faults=(Fault(22, "slow", delay_s=60.0),))
    dataset = bench.dataset(server, prefetch=12, reconnect_timeout_s=0.1)

    def read() -> None:
        with pytest.raises(DaemonUnreachable):
            deque((None for _ in dataset), maxlen=0)  # holds one batch at a time

    reader = threading.Thread(target=read)
    reader.start()
    server.wait_for(lambda: len(server.releases) == 21 and server.sessions["session-1"].credits == 11)
    server.stop()
    reader.join(PATIENT_S)
    assert not reader.is_alive()


def test_what_is_kept_for_a_fuller_request() -> None:
    """Only from a daemon that is quick and has a third of the slots to fill, and never where ranks share the slots."""
    assert session.may_defer(4, 12, 0.0, shared=False)
    assert not session.may_defer(3, 12, 0.0, shared=False)
    assert not session.may_defer(4, 12, session.QUICK_S, shared=False)
    assert not session.may_defer(4, 12, 0.0, shared=True)


def test_copies_are_the_trainers_and_return_their_slot_at_once(bench: Bench) -> None:
    """With copy=True batches stay intact after their slots were returned and used again."""
    server = bench.server(steps=9, slot_count=2)
    kept = list(bench.dataset(server, copy=True))
    for step, batch in enumerate(kept):
        check_rich(batch, list(range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)))
    server.wait_for(lambda: server.leased_count == 0)


@pytest.mark.slow  # waits for real time to pass
def test_the_last_batch_survives_a_break(bench: Bench) -> None:
    """After leaving a loop early the last batch is valid as long as any view of it lives, however small."""
    server = bench.server(steps=8)
    dataset = bench.dataset(server)
    for batch in dataset:
        row = batch["img"][3]
        break
    wanted = row.clone()
    del batch
    assert sum(1 for _ in dataset) == 8  # reuses every other slot, several times
    assert torch.equal(row, wanted)
    slot_of_row = len(server.releases)
    del row
    gc.collect()
    assert sum(1 for _ in dataset) == 8
    assert len(server.releases) > slot_of_row
    assert len(server.opens) == 1  # one session served all three passes


def test_a_break_starts_the_same_epoch_again_and_a_full_pass_the_next(bench: Bench) -> None:
    """Complete passes advance the epoch by themselves, passes left early do not, set_epoch overrides."""
    server = bench.server(steps=3)
    dataset = bench.dataset(server, copy=True)
    for _ in dataset:
        break
    firsts = [ids(next(iter(list(dataset))))[0] for _ in range(2)]
    dataset.set_epoch(7)
    firsts.append(ids(next(iter(list(dataset))))[0])
    assert firsts == [0, EPOCH, 7 * EPOCH]
    assert [start.next.epoch for start in server.starts] == [0, 0, 1, 7]


@pytest.mark.parametrize("batch_size", [BATCH_SIZE, None])
def test_a_trainer_that_goes_by_len_comes_to_the_next_epoch(bench: Bench, batch_size: int | None) -> None:
    """Where steps are known, the last one completes the epoch, for the next pass and for the state saved then."""
    dataset = bench.dataset(bench.server(steps=3, tell_steps=True), batch_size=batch_size)
    count = len([*dataset])
    for epoch in range(1, 4):
        batches = iter(dataset)
        for _ in range(count - 1):
            last = next(batches)
            assert dataset.state_dict()["epoch"] == epoch
        last = next(batches)
        assert int(torch.as_tensor(last["cls"]).flatten()[0]) // EPOCH == epoch
        state = dataset.state_dict()
        assert (state["epoch"], state["step"], state["row"]) == (epoch + 1, 0, 0)
    fresh = bench.dataset(bench.server(steps=3, tell_steps=True), batch_size=batch_size)
    fresh.load_state_dict(state)
    assert len([*fresh]) == count
    assert fresh.state_dict()["epoch"] == 5


def test_ranks_that_end_apart_ask_for_the_end(bench: Bench) -> None:
    """With ``uneven="allow"`` a rank that has taken its last batch stays in the epoch: others may have more."""
    topology = Topology(rank=0, world_size=2, local_rank=0, local_world_size=2)
    dataset = bench.dataset(bench.server(steps=3, tell_steps=True), uneven="allow", topology=topology)
    batches = iter(dataset)
    for _ in range(3):
        next(batches)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["step"]) == (0, 3)
    assert next(batches, None) is None
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["step"]) == (1, 0)


def test_two_passes_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    """Interleaved iterators of one dataset each see the whole epoch."""
    server = bench.server(steps=5)
    dataset = bench.dataset(server)
    pairs = [(ids(one), ids(two)) for one, two in zip(dataset, dataset, strict=True)]
    assert [one for one, _ in pairs] == [two for _, two in pairs]
    assert [first[0] for first, _ in pairs] == [step * BATCH_SIZE for step in range(5)]
    assert len(server.opens) == 2


def test_single_samples_cover_the_epoch(bench: Bench) -> None:
    """batch_size=None yields each sample once, text and JSON as plain values."""
    dataset = bench.dataset(bench.server(steps=2, last_rows=5), batch_size=None, copy=True)
    samples = list(dataset)
    assert [int(sample["cls"]) for sample in samples] == list(range(64 + 5))
    assert samples[66]["__key__"] == "sample-000000066"
    assert samples[66]["meta"] == {"id": 66}
    assert samples[66]["img"].shape == (4, 6, 3)
    assert samples[66]["raw"].tolist() == [66, 66]


@pytest.mark.parametrize("slot_bytes", [1 << 16, 64])
def test_inline_batches_equal_slot_batches(bench: Bench, slot_bytes: int) -> None:
    """Without an arena, or for batches larger than a slot, the very same batches arrive in chunks."""
    server = bench.server(steps=4, arena=slot_bytes != 1 << 16, slot_bytes=slot_bytes)
    dataset = bench.dataset(server)
    kept = list(dataset)  # inline payloads are private: nothing is overwritten
    for step, batch in enumerate(kept):
        check_rich(batch, list(range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)))
    assert dataset.stats()["transport"] == ("inline" if slot_bytes == 1 << 16 else "slot")


def test_len_is_known_or_says_what_to_do(bench: Bench) -> None:
    """len() is a TypeError that names the way out until the number of steps is known, then that number."""
    dataset = bench.dataset(bench.server(steps=3))
    with pytest.raises(TypeError, match="not known"):
        len(dataset)
    assert len(list(dataset)) == 3
    assert len(dataset) == 3
    told = bench.dataset(bench.server(steps=3, tell_steps=True))
    next(iter(told))
    assert len(told) == 3
    with pytest.raises(TypeError, match="samples"):
        len(bench.dataset(bench.server(), batch_size=None))


def test_len_asks_the_daemon_once_before_the_first_pass(bench: Bench) -> None:
    """Progress bars want to know before they begin: where the daemon knows, so do they; nothing stays open for it."""
    server = bench.server(steps=3, tell_steps=True)
    dataset = bench.dataset(server)
    assert [len(dataset) for _ in range(2)] == [3, 3]
    assert len(server.opens) == 1
    server.wait_for(lambda: not server.sessions)
    silent = bench.server(steps=3)
    unknown = bench.dataset(silent)
    for _ in range(2):
        with pytest.raises(TypeError, match="feedd index"):
            len(unknown)
    assert len(silent.opens) == 1


def test_fillers_are_marked_where_asked_for(bench: Bench) -> None:
    """With uneven="pad" every batch says which of its samples come for the first time; else none does."""
    server = bench.server(steps=3, uneven="pad", again={2: b"\0\0\1\1"})
    marks = [batch["__valid__"].tolist() for batch in bench.dataset(server, uneven="pad", copy=True)]
    assert marks == [[True] * 4, [True] * 4, [True, True, False, False]]
    assert all("__valid__" not in batch for batch in bench.dataset(bench.server(steps=2)))


def test_stats_count_what_was_handed_out(bench: Bench) -> None:
    """stats() adds up batches, samples and bytes, and says how batches travel."""
    dataset = bench.dataset(bench.server(steps=3, last_rows=1))
    for _ in dataset:
        pass
    stats = dataset.stats()
    assert (stats["batches"], stats["samples"], stats["transport"], stats["reconnects"]) == (3, 9, "slot", 0)
    assert stats["bytes"] > 0
    assert stats["time_to_first_batch_s"] > 0
    json.dumps(stats)


def test_open_says_what_the_user_asked_for(bench: Bench) -> None:
    """Every argument reaches the daemon."""
    server = bench.server(steps=1)
    dataset = bench.dataset(
        server,
        fields={"jpg": "image:224x224", "cls": {"decode": "int", "a": 1}},
        shuffle=Shuffle(window_shards=8),
        seed=5,
        sharding="size",
        keys=True,
        prefetch=3,
        max_bad_samples=2,
        partitions=4,
        steps=7,
    )
    for _ in dataset:
        pass
    (request,) = server.opens
    assert [(one.name, one.recipe) for one in request.recipe.fields] == [
        ("jpg", "image:224x224"),
        ("cls", '{"a":1,"decode":"int"}'),
    ]
    assert (request.shuffle.enabled, request.shuffle.window_shards, request.seed) == (True, 8, 5)
    assert (request.sharding, request.recipe.keys, request.prefetch_batches) == ("size", True, 3)
    assert (request.partitions, request.steps, request.uneven) == (4, 7, "repeat")
    assert (request.recipe.bad_samples_max, request.recipe.batch_size) == (2, BATCH_SIZE)
    assert (request.topology.world_size, request.consumer_count, list(request.urls)) == (1, 1, ["s3://bucket/train/"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"seed": -1},
        {"sharding": "keys"},
        {"uneven": "maybe"},
        {"prefetch": 0},
        {"shuffle": 3},
        {"shuffle": Shuffle(window_shards=0)},
        {"max_bad_samples": -1},
        {"address": "feedd.sock"},
        {"address": "host:port"},
        {"open_timeout_s": 0},
    ],
)
def test_arguments_that_cannot_work_are_refused_by_the_constructor(bench: Bench, arguments: dict[str, Any]) -> None:
    """A bad argument is a ValueError that names it, before anything is opened."""
    with pytest.raises(BadOptionError) as caught:
        bench.dataset("unix:///nowhere/feedd.sock", **arguments)
    assert isinstance(caught.value, ValueError)
    assert caught.value.object == next(iter(arguments))


def test_ragged_behaves_like_a_sequence() -> None:
    """Rows are reached by index from both ends, out of range is an IndexError, and conversions keep content."""
    ragged = Ragged(torch.arange(6, dtype=torch.uint8), torch.tensor([0, 2, 2, 6]))
    assert len(ragged) == 3
    assert [row.tolist() for row in ragged] == [[0, 1], [], [2, 3, 4, 5]]
    assert ragged[-1].tolist() == [2, 3, 4, 5]
    assert ragged.to(torch.float32).values.dtype == torch.float32
    assert ragged.clone().bytes(0) == b"\x00\x01"
    with pytest.raises(IndexError):
        ragged[3]
