"""Arm: ``.npy`` objects with torch's DataLoader, whose workers read whole objects with the S3 client that is named.

Readers return buffers, and samples are views of them: nothing is copied before torch collates the batch. With
``boto3, into the batch`` a worker reads each object right into its row of a batch in shared memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from tests.bench.arms.consume import consume, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_BYTES = 1 << 20


def _boto3_client() -> Any:
    import boto3  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - the peers' environment, this arm only

    return boto3.client("s3")


def _boto3(bucket: str) -> Callable[[str], Any]:
    client = _boto3_client()
    return lambda key: client.get_object(Bucket=bucket, Key=key)["Body"].read()


def _obstore(bucket: str) -> Callable[[str], Any]:
    import obstore  # noqa: PLC0415 - the peers' environment, this arm only
    from obstore.store import S3Store  # noqa: PLC0415 - ditto

    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return lambda key: obstore.get(store, key).bytes()


def _s3torchconnector(bucket: str) -> Callable[[str], Any]:
    from s3torchconnector import (  # type: ignore[import-not-found]  # noqa: PLC0415 - the peers' environment
        S3ClientConfig,
        S3MapDataset,
    )

    config = S3ClientConfig(force_path_style=True)
    region, endpoint = os.environ["AWS_REGION"], os.environ["AWS_ENDPOINT_URL"]

    def read(key: str) -> Any:
        uris = [f"s3://{bucket}/{key}"]
        return S3MapDataset.from_objects(uris, region=region, endpoint=endpoint, s3client_config=config)[0].read()

    return read


_READERS = {"boto3": _boto3, "obstore": _obstore, "s3torchconnector": _s3torchconnector}


class _Samples(Dataset[Any]):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._bucket, self._reader = settings["bucket"], settings["reader"]
        self._record_bytes: int = settings["record_bytes"]
        pages = _boto3_client().get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self._bucket, Prefix=f"{settings['folder']}/")
        self._keys: list[str] = [item["Key"] for page in found for item in page["Contents"]]
        self._read: Any = None  # one for each worker, since clients do not survive a fork

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._read is None:
            self._read = _READERS[self._reader](self._bucket)
        data = self._read(self._keys[index])
        return torch.frombuffer(data, dtype=torch.uint8, offset=len(data) - self._record_bytes), index


class _WholeBatches(_Samples):
    """Reads into a batch that the trainer maps: no copy is left that a DataLoader could save."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if self._read is None:
            self._read = _boto3_client()
        storage: Any = torch.UntypedStorage  # torch's own collation makes its batches like this
        batch = torch.tensor([], dtype=torch.uint8).set_(storage._new_shared(len(indices) * self._record_bytes))
        batch = batch.view(len(indices), self._record_bytes)
        for row, index in zip(batch.numpy(), indices, strict=True):
            answer = self._read.get_object(Bucket=self._bucket, Key=self._keys[index])
            body, header_bytes = answer["Body"], answer["ContentLength"] - self._record_bytes
            body.read(header_bytes)
            view, at = memoryview(row), 0
            while at < len(view):
                count = body.readinto(view[at : at + _PIECE_BYTES])
                assert count, f"expected {len(view)} bytes, got {at}"
                at += count
        return batch, torch.tensor(indices)


def _as_it_is(batch: Any) -> Any:
    return batch


class _Listed:
    """Lists inside ``iter``, as feedd does."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __iter__(self) -> Any:
        settings = self._settings
        whole = settings["reader"] == "boto3, into the batch"
        return iter(
            DataLoader(
                _WholeBatches(settings) if whole else _Samples(settings),
                batch_size=settings["batch_size"],
                shuffle=True,
                num_workers=settings["workers"],
                prefetch_factor=settings["prefetch_factor"],
                collate_fn=_as_it_is if whole else None,
            )
        )


def main() -> None:
    """Run."""
    settings = read_settings()
    consume(_Listed(settings), tuple, settings)


if __name__ == "__main__":
    main()
