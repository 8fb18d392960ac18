"""Arm: some columns of Parquet with ``pyarrow.dataset`` over S3, in the trainer's process; its threads read ahead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import torch
from pyarrow.fs import S3FileSystem

from tests.bench.arms.columns import read_settings, take

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAGMENTS_AHEAD = 8
_BATCHES_AHEAD = 64


class _Batches:
    """Batches of exactly ``batch_size`` rows, but for the last one, in the files' order."""

    def __init__(self, settings: dict[str, Any]) -> None:
        url = os.environ["AWS_ENDPOINT_URL"]
        scheme, _, host = url.partition("://")
        store = S3FileSystem(
            endpoint_override=host,
            scheme=scheme,
            region="us-east-1",
            access_key=os.environ["AWS_ACCESS_KEY_ID"],
            secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            force_virtual_addressing=False,
        )
        self._table = ds.dataset(settings["url"].removeprefix("s3://"), format="parquet", filesystem=store)
        self._columns: list[str] = settings["columns"]
        self._batch_size: int = settings["batch_size"]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        # Each file's row groups are whole multiples of the batch, so no batch needs rows of two of them.
        for batch in self._table.to_batches(
            columns=self._columns,
            batch_size=self._batch_size,
            fragment_readahead=_FRAGMENTS_AHEAD,
            batch_readahead=_BATCHES_AHEAD,
        ):
            yield {name: torch.from_numpy(_numbers(batch.column(name))) for name in self._columns}


def _numbers(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)


def main() -> None:
    """Run."""
    settings = read_settings()
    pa.set_cpu_count(settings["workers"])
    pa.set_io_thread_count(16)
    take(_Batches(settings), settings)


if __name__ == "__main__":
    main()
