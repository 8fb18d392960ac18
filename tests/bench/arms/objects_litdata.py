"""Arm: an epoch over plain objects with litdata's StreamingRawDataset."""

from __future__ import annotations

import os
from typing import Any

from litdata.raw.dataset import StreamingRawDataset  # type: ignore[import-not-found]  # peers' environment
from litdata.raw.indexer import BaseIndexer, FileMetadata  # type: ignore[import-not-found]  # peers' environment
from litdata.streaming import downloader  # type: ignore[import-not-found]  # peers' environment
from torch.utils.data import DataLoader

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decode_picture
from tests.bench.arms.objects_boto3 import label_of, list_keys


class _Indexer(BaseIndexer):  # type: ignore[misc]  # its base is not installed where mypy runs
    """Lists by boto3."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def discover_files(self, *_: Any) -> Any:
        return [FileMetadata(f"s3://{self._settings['bucket']}/{key}", 100_000) for key in list_keys(self._settings)]

    def build_or_load_index(self, *_: Any, **__: Any) -> Any:
        return self.discover_files()


class _Pictures(StreamingRawDataset):  # type: ignore[misc]  # its base is not installed where mypy runs
    def __getitems__(self, indices: list[int]) -> list[Any]:
        bodies = super().__getitems__(indices)
        return [(decode_picture(body), label_of(self.items[n].path)) for n, body in zip(indices, bodies, strict=True)]


class _Listed:
    """Lists inside ``iter``, as all others do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __iter__(self) -> Any:
        settings = self._settings
        dataset = _Pictures(
            f"s3://{settings['bucket']}/{settings['folder']}",
            cache_dir=settings["cache_dir"],
            indexer=_Indexer(settings),
            storage_options={
                "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
                "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "region_name": os.environ["AWS_DEFAULT_REGION"],
            },
        )
        return iter(
            DataLoader(
                dataset,
                batch_size=settings["batch_size"],
                shuffle=True,
                num_workers=settings["workers"],
                prefetch_factor=settings["prefetch_factor"],
            )
        )


def main() -> None:
    """Run."""
    settings = read_settings()
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # its fast path refuses plain http otherwise
    consume(_Listed(settings), tuple, settings)


if __name__ == "__main__":
    main()
