"""What a batch is: a dict that says what is in it, and is not made into batches of batches."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

from feedd_client import BadOptionError, Batch, Ragged
from tests.fakes.feed_client import BATCH_SIZE, check_rich, ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.feed_client import Bench

EPOCH = [list(range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)) for step in range(5)]


def test_a_batch_says_what_is_in_it(bench: Bench) -> None:
    """The repr is one line: names, dtypes and shapes."""
    batch = next(iter(bench.dataset(bench.server(), keys=True)))
    assert type(batch) is Batch
    assert isinstance(batch, dict)
    text = repr(batch)
    assert "\n" not in text
    assert text.startswith("Batch(")
    assert "cls: int64[4]" in text
    assert "raw: Ragged[4] of uint8" in text
    assert "__key__: list[4]" in text
    assert repr(Batch(x=torch.zeros(2, 3), y=1)) == "Batch(x: float32[2, 3], y: int)"


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 8}, pytest.param({"batch_size": 2, "num_workers": 1}, marks=pytest.mark.slow)],  # 5 s to end
)
def test_batches_are_not_collated_again(bench: Bench, options: dict[str, Any]) -> None:
    """``DataLoader(dataset)`` without ``batch_size=None`` is an error that says so, with and without workers."""
    loader = DataLoader(bench.dataset(bench.server()), **options)
    with pytest.raises(BadOptionError, match=r"DataLoader\(dataset, batch_size=None\)"):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")  # torchdata's
@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("worker_count", [0, 2])
def test_batches_pass_through_loaders(bench: Bench, loader: Callable[..., Any], worker_count: int) -> None:
    """``batch_size=None`` hands out the batches as they are."""
    dataset = bench.dataset(bench.server(), keys=True)
    batches = list(loader(dataset, batch_size=None, num_workers=worker_count))
    assert [ids(batch) for batch in batches] == EPOCH
    assert {type(batch) for batch in batches} == {Batch}
    for batch in batches:
        check_rich(batch, ids(batch))


def test_single_samples_are_collated(bench: Bench) -> None:
    """A DataLoader makes batches of single samples, which are plain dicts."""
    dataset = bench.dataset(bench.server(specs="ids"), batch_size=None)
    assert {type(sample) for sample in dataset} == {dict}
    dataset.set_epoch(0)
    sizes = [len(batch["cls"]) for batch in DataLoader(dataset, batch_size=10)]
    assert set(sizes[:-1]) == {10}


@pytest.mark.parametrize(
    "through",
    [
        lambda batch: pickle.loads(pickle.dumps(batch)),
        copy.copy,
        copy.deepcopy,
        Batch.copy,
        lambda batch: _pytree.tree_map(lambda leaf: leaf, batch),
        lambda batch: type(batch)(dict(batch)),  # as frameworks rebuild them
    ],
    ids=["pickle", "copy", "deepcopy", "own", "pytree", "rebuilt"],
)
def test_a_batch_stays_one(bench: Bench, through: Callable[[Batch], Batch]) -> None:
    """Pickled, copied, mapped over and rebuilt, a batch is a batch of the same values."""
    batch = next(iter(bench.dataset(bench.server(), keys=True)))
    made = through(batch)
    assert type(made) is Batch
    check_rich(made, EPOCH[0])


def test_trees_reach_its_tensors() -> None:
    """What maps over trees of tensors finds those of a batch."""
    batch = Batch(x=torch.ones(2), y=[torch.ones(1)])
    assert _pytree.tree_map(lambda leaf: leaf + 1, batch)["y"][0].item() == 2
    with pytest.raises(BadOptionError):
        default_collate([batch, batch])
    assert isinstance(Ragged(torch.ones(1), torch.tensor([0, 1])), Ragged)
