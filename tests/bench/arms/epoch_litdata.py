"""Arm: an epoch with litdata, from LitData chunks."""

from __future__ import annotations

import os
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]  # peers' environment
from litdata.streaming import downloader  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decoder


class _Pictures(StreamingDataset):  # type: ignore[misc]  # its base is not installed where mypy runs
    decode: Any

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.decode(sample["jpg"]), sample["cls"]


def main() -> None:
    """Run."""
    settings = read_settings()
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # its fast path refuses plain http otherwise
    dataset = _Pictures(
        input_dir=f"s3://{settings['bucket']}/litdata",
        cache_dir=settings["cache_dir"],
        shuffle=True,
        max_cache_size="100GB",
        max_pre_download=settings["max_pre_download"],
        storage_options={
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "region_name": os.environ["AWS_DEFAULT_REGION"],
        },
    )
    dataset.decode = decoder(settings)
    loader = StreamingDataLoader(
        dataset,
        batch_size=settings["batch_size"],
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch_factor"],
    )
    consume(loader, tuple, settings)


if __name__ == "__main__":
    main()
