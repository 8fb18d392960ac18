"""Run by test_client_accelerate, becomes one or two ranks: what Accelerate and Trainer make of a FeedDataset."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import IterableDatasetShard, prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from feedd_client import DeviceLoader, FeedDataset, FeedError
from tests.fakes.feed_process import rank_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BATCH = 8
EPOCHS = 2
Made = dict[str, Any]


def ids(batches: Iterable[Any]) -> list[int]:
    """Return the samples of a pass."""
    return [int(one) for batch in batches for one in batch["cls"].flatten().tolist()]


def accelerator(**config: Any) -> Accelerator:
    """Return one on the CPU."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


class Model(torch.nn.Module):
    """Remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def forward(self, cls: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss."""
        self.seen += ids([{"cls": cls}])
        assert cls.dim() == 1, f"expected single samples in a batch, got {list(cls.shape)}"
        return {"loss": (self.weight * cls).sum() * 0}


def train(dataset: FeedDataset, steps: int, loader: Callable[[Trainer], Any] | None = None) -> list[int]:
    """Train with Hugging Face's Trainer for some steps."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[], save_strategy="no",
            disable_tqdm=True, remove_unused_columns=False, logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        model = Model()
        trainer = Trainer(model, arguments, train_dataset=dataset)
        if loader is not None:
            trainer.get_train_dataloader = lambda: loader(trainer)  # type: ignore[method-assign]  # as users do
        trainer.train()
        return model.seen


def main() -> None:
    """Print what each rank saw: the others are forks of this one, as the imports take longer than the rest."""
    count = int(sys.argv[4])
    others = []
    for number in range(1, count):
        reading, writing = os.pipe()
        if not os.fork():
            os.environ |= rank_environment(number, count)
            with os.fdopen(writing, "w") as sink:
                json.dump(_seen(), sink)
            os._exit(0)
        os.close(writing)
        others.append(os.fdopen(reading))
    if count > 1:
        os.environ |= rank_environment(0, count)
    ranks = [_seen(), *map(json.load, others)]
    assert [os.wait()[1] for _ in others] == [0] * len(others)
    print(json.dumps({"ranks": ranks}), flush=True)


def _seen() -> Made:
    """Return, for each way to use them, the samples this process saw or the error it got."""
    known, unknown, rank_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found: Made = {}

    def batches(address: str = known, batch_size: int | None = BATCH) -> FeedDataset:
        return FeedDataset("s3://b/", batch_size=batch_size, address=address, open_timeout_s=30.0)

    def prepared(config: Made, dataset: FeedDataset, **options: Any) -> list[int]:
        loader = accelerator(**config).prepare(DataLoader(dataset, **{"batch_size": None, **options}))
        return [one for _ in range(EPOCHS) for one in ids(loader)]

    def unadapted(dataset: FeedDataset, workers: int, **options: Any) -> list[int]:
        state = accelerator().state
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return ids(
            prepare_data_loader(loader, state.device, put_on_device=True, num_processes=state.num_processes, **options)
        )

    def sharded(dataset: FeedDataset) -> list[int]:
        state = accelerator().state
        shard = IterableDatasetShard(dataset, 1, num_processes=state.num_processes, process_index=state.process_index)
        return ids(iter(shard))

    ways: dict[str, Callable[[], list[int]]] = {
        "prepare": lambda: prepared({}, batches()),
        "dispatch": lambda: prepared({"dispatch_batches": True}, batches()),
        "no dispatch": lambda: prepared({"dispatch_batches": False}, batches()),
        "stateful": lambda: prepared({"use_stateful_dataloader": True}, batches()),
        "workers": lambda: prepared({}, batches(), num_workers=2),
        "join": lambda: prepared({}, batches(unknown)),
        "singles": lambda: prepared({}, batches(batch_size=None), batch_size=BATCH),
        "split": lambda: prepared({"split_batches": True}, batches()),
        "batches of batches": lambda: prepared({}, batches(), batch_size=BATCH),
        "device loader": lambda: ids(accelerator().prepare(DeviceLoader(batches(), device="cpu"))),
        "dispatcher": lambda: unadapted(batches(), 0),
        "dispatcher, workers": lambda: unadapted(batches(), 2),
        "shard": lambda: sharded(batches()),
        "trainer": lambda: train(batches(batch_size=None), EPOCHS * rank_steps * 64 // BATCH),
        "trainer, batches": lambda: train(batches(), 4),
        "trainer, own loader": lambda: train(
            batches(),
            EPOCHS * rank_steps,
            lambda trainer: trainer.accelerator.prepare(DataLoader(batches(), batch_size=None)),
        ),
    }
    for name, way in ways.items():
        try:
            found[name] = way()
        except FeedError as error:
            found[name] = str(error)
        print(name, file=sys.stderr, flush=True)  # where it hung, if it did
    return found


if __name__ == "__main__":
    main()
