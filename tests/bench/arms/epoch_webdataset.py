"""Arm: an epoch with webdataset, from tar shards, read by curl (its own way for http) or through boto3."""

from __future__ import annotations

import os
from typing import Any

import webdataset as wds  # type: ignore[import-not-found]  # peers' environment
from torch.utils.data import default_collate

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decoder


def _open_s3(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> Any:
    """Open ``s3://bucket/key`` as a stream: the handler webdataset's users write, since it brings none."""
    import boto3  # noqa: PLC0415 - as late as a user would: clients do not survive a fork

    bucket, key = url.removeprefix("s3://").split("/", 1)
    return boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"]


def main() -> None:
    """Run."""
    settings = read_settings()
    wds.gopen_schemes["s3"] = _open_s3
    base = "s3://" if settings["reader"] == "boto3" else os.environ["AWS_ENDPOINT_URL"] + "/"
    dataset = (
        wds.WebDataset(
            base + settings["shards"], shardshuffle=settings["shard_count"], seed=0, nodesplitter=wds.split_by_node
        )
        .shuffle(settings["shuffle_buffer"])
        .to_tuple("jpg", "cls")
        .map_tuple(decoder(settings), int)
        .batched(settings["batch_size"], collation_fn=default_collate)
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=settings["workers"], prefetch_factor=settings["prefetch_factor"]
    )
    consume(loader, tuple, settings)


if __name__ == "__main__":
    main()
