"""Lightning's Trainer: it stops by ``len()`` where there is one, saves positions by itself, and asks for no end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from feedd_client import DeviceLoader, FeedDataset
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.lightning import Seen
    from tests.fakes.s3.server import S3Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_daemon"),
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's and torchdata's, of their own making
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

STEPS = 16  # 126 samples in batches of 8


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon], caplog: pytest.LogCaptureFixture) -> Daemon:
    """A daemon over six shards of 21 samples, that knows their counts."""
    caplog.set_level(logging.WARNING)
    for shard in range(6):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 21, pad_bytes=100))
    made = daemons(workers=1)
    for _ in _dataset(made):
        pass
    return made


def _dataset(daemon: Daemon) -> FeedDataset:
    return FeedDataset(
        "s3://data/train/", batch_size=8, fields={"cls": "int"}, shuffle=True, seed=3, address=daemon.address
    )


def _fit(data: Any, folder: Path, **options: Any) -> Seen:
    from tests.fakes.lightning import fit  # noqa: PLC0415 - else whoever collects these tests imports all of Lightning

    return fit(data, folder, **options)


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [None, 0, 2], ids=["dataset", "loader", "loader-with-workers"])
def test_a_run_stopped_anywhere_goes_on(daemon: Daemon, tmp_path: Path, workers: int | None) -> None:
    """Two epochs are two different orders, and a checkpoint of any step leads to the same rest."""

    def data() -> Any:
        dataset = _dataset(daemon)
        return dataset if workers is None else StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = _fit(data(), tmp_path, save=True)
    orders = [[label for epoch, labels in whole if epoch == wanted for label in labels] for wanted in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == [s * 1000 + n for s in range(6) for n in range(21)]
    assert orders[0] != orders[1]
    for step in (1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS - 1):
        rest = _fit(data(), tmp_path, resume=tmp_path / f"step={step}.ckpt")
        assert whole[:step] + rest == whole


def test_a_device_loader_over_a_plain_dataloader_is_checkpointed(daemon: Daemon, tmp_path: Path) -> None:
    """Lightning saves and restores the position of DeviceLoader(DataLoader(dataset)): a resumed run has the rest."""

    def data() -> Any:
        return DeviceLoader(DataLoader(_dataset(daemon), batch_size=None), "cpu")

    whole = _fit(data(), tmp_path, save=True)
    assert len(whole) == 2 * STEPS
    for step in (1, STEPS, STEPS + 1):
        rest = _fit(data(), tmp_path, resume=tmp_path / f"step={step}.ckpt")
        assert whole[:step] + rest == whole
