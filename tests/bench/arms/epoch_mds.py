"""Arm: an epoch with mosaicml-streaming, from MDS shards."""

from __future__ import annotations

from typing import Any

from streaming import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decoder


class _Pictures(StreamingDataset):  # type: ignore[misc]  # its base is not installed where mypy runs
    decode: Any

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return self.decode(sample["jpg"]), sample["cls"]


def main() -> None:
    """Run."""
    settings = read_settings()
    dataset = _Pictures(
        remote=f"s3://{settings['bucket']}/mds",
        local=settings["cache_dir"],
        shuffle=True,
        batch_size=settings["batch_size"],
        predownload=settings["predownload"],
    )
    dataset.decode = decoder(settings)
    for stream in dataset.streams:
        # The S3 client that fetched the index holds an open connection, and forked workers would all use it: answers
        # then reach the wrong worker and an epoch stalls for a minute or fails, as 2 of 21 did here. Not what is
        # compared, so each worker is made to open its own.
        stream._downloader.clean_up()
    loader = StreamingDataLoader(
        dataset,
        batch_size=settings["batch_size"],
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
    )
    consume(loader, tuple, settings)


if __name__ == "__main__":
    main()
