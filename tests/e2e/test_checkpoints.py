"""Resume positions through the tools people checkpoint with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from feedd_client import FeedDataset
from tests.budget import later
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon]) -> Daemon:
    """A daemon over six shards of 21 samples."""
    for shard in range(6):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 21, pad_bytes=100))
    return daemons(workers=1)


def _dataset(daemon: Daemon) -> FeedDataset:
    return FeedDataset(
        "s3://data/train/", batch_size=8, fields={"cls": "int"}, shuffle=True, seed=3, address=daemon.address
    )


def _labels(batches: Any) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in batches]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata with torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader(daemon: Daemon, workers: int) -> None:
    """Torchdata's loader takes a state in the middle of an epoch and goes on from it, with workers too."""
    whole = _labels(StatefulDataLoader(_dataset(daemon), batch_size=None, num_workers=workers))
    assert sorted(label for batch in whole for label in batch) == [s * 1000 + n for s in range(6) for n in range(21)]
    loader = StatefulDataLoader(_dataset(daemon), batch_size=None, num_workers=workers)
    batches = iter(loader)
    seen = _labels(next(batches) for _ in range(5))
    state = loader.state_dict()
    del batches
    fresh = StatefulDataLoader(_dataset(daemon), batch_size=None, num_workers=workers)
    fresh.load_state_dict(state)
    assert seen + _labels(fresh) == whole


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # as above
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than cores
@pytest.mark.parametrize(("workers", "counted"), [(0, True), later(2, True), (3, True), later(3, False)])
def test_states_near_the_end_of_an_epoch(daemon: Daemon, workers: int, counted: bool) -> None:
    """Some workers have had their part of an epoch, others not: what is left of it comes first, then the next one."""
    if counted:  # then a worker knows its last batch when it sees it
        _labels(_dataset(daemon))
    loader = StatefulDataLoader(_dataset(daemon), batch_size=None, num_workers=workers)
    epochs: list[list[list[int]]] = [[], []]
    states = []
    for epoch in epochs:
        for batch in loader:
            epoch.append(batch["cls"].tolist())
            states.append(loader.state_dict())
    steps = len(epochs[0])
    assert steps == len(epochs[1]) == 16
    for taken in (steps - 2, steps - 1, steps):
        fresh = StatefulDataLoader(_dataset(daemon), batch_size=None, num_workers=workers)
        fresh.load_state_dict(states[taken - 1])
        passes = [_labels(fresh) for _ in range(2)]
        rest = [epochs[0][taken:], epochs[1]] if taken < steps else [epochs[1]]
        if taken == steps:  # torchdata asks first whose turn it was, and that need not be the first worker's
            rest, passes = [sorted(one) for one in rest], [sorted(one) for one in passes]
        assert [one for one in passes if one][: len(rest)] == rest, taken


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # so it is, here
def test_distributed_checkpoint(daemon: Daemon, tmp_path: Path) -> None:
    """torch.distributed.checkpoint saves and loads the position beside a model."""
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415 - takes long, and for this test only
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - see above

    whole = _labels(_dataset(daemon))
    dataset = _dataset(daemon)
    batches = iter(dataset)
    seen = _labels(next(batches) for _ in range(7))
    weight = torch.ones(3)
    save({"weight": weight, "data": dataset.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)
    fresh = _dataset(daemon)
    found: dict[str, Any] = {"weight": torch.zeros(3), "data": fresh.state_dict()}
    load(found, checkpoint_id=str(tmp_path), no_dist=True)
    assert torch.equal(found["weight"], weight)
    assert found["data"] == dataset.state_dict()
    fresh.load_state_dict(found["data"])
    assert seen + _labels(fresh) == whole
