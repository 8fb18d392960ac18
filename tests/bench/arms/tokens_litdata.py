"""Arm: tokens with litdata's TokensLoader, from chunks that lie here already."""

from __future__ import annotations

from litdata import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]  # peers' environment
from litdata.streaming.item_loader import TokensLoader  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.tokens import TOKENS, read_settings, take


def main() -> None:
    """Run."""
    settings = read_settings()
    dataset = StreamingDataset(
        input_dir=settings["folder"],
        item_loader=TokensLoader(block_size=TOKENS),
        shuffle=True,
        drop_last=False,
    )
    loader = StreamingDataLoader(
        dataset,
        batch_size=settings["batch_size"],
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
        persistent_workers=True,
    )
    take(loader, lambda batch: batch, settings)


if __name__ == "__main__":
    main()
