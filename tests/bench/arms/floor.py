"""Arm: what several ranks weigh whatever feeds them: torch, a group of gloo, and the batches ahead in shared memory."""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING, Any

import torch

from tests.bench.arms.consume import consume, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.arms.consume import Pair

_PICTURE = (224, 224, 3)
_HELD_S = 2.0  # several looks of whoever measures


def _batches(settings: dict[str, Any]) -> Iterator[Pair]:
    """Give each batch once all are there, written to; nothing is read or decoded."""
    shape = (settings["batch_size"], *_PICTURE)
    held = [mmap.mmap(-1, torch.Size(shape).numel()) for _ in range(settings["prefetch_factor"])]
    pictures = [torch.frombuffer(memory, dtype=torch.uint8).reshape(shape).fill_(1) for memory in held]
    time.sleep(_HELD_S)
    for batch in pictures:
        yield batch, torch.zeros(len(batch), dtype=torch.int64)


def main() -> None:
    """Run."""
    settings = read_settings()
    consume(_batches(settings), tuple, settings)


if __name__ == "__main__":
    main()
