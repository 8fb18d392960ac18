"""Arm: an epoch over plain objects with a map-style data set that gets each by boto3.

As tutorials have it, a worker gets one object after the other; with ``threads`` its ``__getitems__`` gets a batch's
objects side by side.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]  # in the peers' environment
from botocore.config import Config
from torch.utils.data import DataLoader, Dataset

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decode_picture


def list_keys(settings: dict[str, Any]) -> list[str]:
    """Return the keys of all pictures."""
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    found = pages.paginate(Bucket=settings["bucket"], Prefix=f"{settings['folder']}/")
    return [item["Key"] for page in found for item in page["Contents"] if item["Key"].endswith(".jpg")]


def label_of(key: str) -> int:
    """Return a picture's number."""
    return int(PurePosixPath(key).stem)


class _Pictures(Dataset[Any]):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._bucket = settings["bucket"]
        self._keys = list_keys(settings)
        self._client: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        if self._client is None:  # one for each worker
            self._client = boto3.client("s3")
        body = self._client.get_object(Bucket=self._bucket, Key=self._keys[index])["Body"].read()
        return decode_picture(body), label_of(self._keys[index])


class _SideBySide(_Pictures):
    """Gets a batch's objects in threads; boto3's clients may be shared by threads, its sessions may not."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._thread_count = settings["threads"]
        self._threads: Any = None

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self._threads is None:
            self._client = boto3.client("s3", config=Config(max_pool_connections=self._thread_count))
            self._threads = ThreadPoolExecutor(self._thread_count)
        return list(self._threads.map(self.__getitem__, indices))


class _Listed:
    """Lists inside ``iter``, as all others do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __iter__(self) -> Any:
        settings = self._settings
        return iter(
            DataLoader(
                _SideBySide(settings) if settings.get("threads") else _Pictures(settings),
                batch_size=settings["batch_size"],
                shuffle=True,
                num_workers=settings["workers"],
                prefetch_factor=settings["prefetch_factor"],
            )
        )


def main() -> None:
    """Run."""
    settings = read_settings()
    consume(_Listed(settings), tuple, settings)


if __name__ == "__main__":
    main()
