"""A model and a Trainer of Lightning's, which remember what they were trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

Seen = list[tuple[int, list[int]]]


class Labels(pl.LightningModule):
    """A model that remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Take note of the batch."""
        self.seen.append((self.trainer.current_epoch, batch["cls"].tolist()))
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return some optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: Any, folder: Path, *, save: bool = False, resume: Path | None = None) -> Seen:
    """Train for two epochs, from a checkpoint on if one is given; return what was trained on."""
    every_step = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=save,
        callbacks=[every_step] if save else [],
        default_root_dir=folder,
    )
    model = Labels()
    trainer.fit(model, data, ckpt_path=None if resume is None else str(resume))
    return model.seen
