"""Small batches of numbers, which lie several in a slot, through a real daemon: a user cannot tell."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import FeedDataset, Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]
WINDOW, ROWS, SHARDS = 8, 700, 3
RECIPE = f'{{"decode": "tokens", "dtype": "uint16", "count": {WINDOW}, "stride": {WINDOW}}}'
OPTIONS: dict[str, Any] = {"batch_size": 4, "fields": {"tokens": RECIPE}, "shuffle": Shuffle(2)}


@pytest.fixture
def dataset(s3: S3Server, daemons: Callable[..., Daemon]) -> Callable[..., FeedDataset]:
    """Return a function that opens a dataset of rows that begin with their number."""
    for shard in range(SHARDS):
        rows = np.repeat(np.arange(shard * ROWS, (shard + 1) * ROWS, dtype=np.uint16), WINDOW)
        s3.put("data", f"d/{shard}.bin", rows.tobytes())
    daemon = daemons()

    def opened(**changes: Any) -> FeedDataset:
        return FeedDataset("s3://data/d/", address=daemon.address, **OPTIONS | changes)

    return opened


def _numbers(batches: Any) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch["tokens"].numpy()]


def test_an_epoch_is_whole_and_the_same_again(dataset: Callable[..., FeedDataset]) -> None:
    """Each row comes once an epoch, epochs differ, and a copy is the same."""
    one, other = dataset(), dataset(copy=True)
    epochs = [_numbers(one) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SHARDS * ROWS))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert [_numbers(other) for _ in range(3)] == epochs
    stats = one.stats()
    assert (stats["batches"], stats["samples"]) == (3 * 525, 3 * SHARDS * ROWS)
    assert stats["transport"] == "slot"


@pytest.mark.parametrize("taken", [1, 2, 7, 200])
def test_a_run_goes_on_at_any_batch(dataset: Callable[..., FeedDataset], taken: int) -> None:
    """State saved in the middle of a slot leads to the batches behind it, in another dataset too."""
    whole = dataset()
    expected = _numbers(whole)
    first, second = dataset(), dataset()
    begun = _numbers(itertools.islice(iter(first), taken))
    second.load_state_dict(first.state_dict())
    assert begun + _numbers(second) == expected


def test_batches_stay_what_they_were(dataset: Callable[..., FeedDataset]) -> None:
    """A trainer may keep every batch, some of each slot, or none; those that it left do not count as taken."""
    every = list(dataset())
    seventh = [batch for number, batch in enumerate(dataset()) if number % 7 == 3]
    assert _numbers(every) == _numbers(dataset())
    for one, other in zip(seventh, every[3::7], strict=True):
        assert torch.equal(one["tokens"], other["tokens"])
    again = dataset()
    for count in (1, 3, 30):  # left in the middle of a slot
        kept = list(itertools.islice(iter(again), count))
        assert len(kept) == count
    assert sorted(_numbers(again)) == list(range(SHARDS * ROWS))


def test_a_saved_batch_is_as_large_as_it_looks(dataset: Callable[..., FeedDataset]) -> None:
    """A tensor's storage is its batch's, not that of all batches in the slot."""
    for batch in itertools.islice(iter(dataset()), 40):
        tensor = batch["tokens"]
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 2
        tensor.fill_(7)  # it is the trainer's


def test_batches_travel_inline_as_well(dataset: Callable[..., FeedDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arena cannot be mapped, a run's batches come in one payload."""
    expected = _numbers(dataset())

    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError("no shared memory")

    monkeypatch.setattr("feedd_client.shm.attach", refuse)
    far = dataset()
    assert _numbers(far) == expected
    assert far.stats()["transport"] == "inline"
    kept = list(itertools.islice(iter(far), 30))
    assert len({int(batch["tokens"][0, 0]) for batch in kept}) == 30
