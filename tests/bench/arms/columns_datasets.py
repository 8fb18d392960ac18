"""Arm: some columns of Parquet with Hugging Face datasets, streamed, in a DataLoader.

``batched`` takes batches from the reader itself, which skips its work per row; without it torch puts rows together.
"""

from __future__ import annotations

import datasets  # type: ignore[import-not-found]  # lives in the peers' environment
from torch.utils.data import DataLoader

from tests.bench.arms.columns import read_settings, take


def main() -> None:
    """Run."""
    settings = read_settings()
    datasets.disable_progress_bars()
    stream = datasets.load_dataset(
        "parquet", data_files=settings["urls"], split="train", streaming=True, columns=settings["columns"]
    ).with_format("torch")
    workers = {"num_workers": settings["workers"], "prefetch_factor": settings["prefetch_factor"]}
    if settings["batched"]:
        loader = DataLoader(stream.batch(settings["batch_size"]), batch_size=None, **workers)
    else:
        loader = DataLoader(stream, batch_size=settings["batch_size"], **workers)
    take(loader, settings)


if __name__ == "__main__":
    main()
