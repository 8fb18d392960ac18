"""Arm: some columns of Parquet with ``pyarrow.dataset`` over S3, in the trainer's process; its threads read ahead."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch
from pyarrow.fs import S3FileSystem

from tests.bench.arms.columns import ROW, read_settings, take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

_GROUPS_TOGETHER = 4


class _Batches:
    """Batches of exactly ``batch_size`` rows, but for the last one. ``iter`` connects and lists, as any job must."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._columns: list[str] = settings["columns"]
        self._batch_size: int = settings["batch_size"]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Read whole row groups, the next four meanwhile: several times as fast as ``Dataset.to_batches``.

        Shuffled: row groups in random order, and rows permuted within four of them.
        """
        random = np.random.default_rng(0)
        groups = [group for file in _open(self._settings["url"]).get_fragments() for group in file.split_by_row_group()]
        if self._settings["shuffled"]:
            groups = [groups[number] for number in random.permutation(len(groups)).tolist()]
        with ThreadPoolExecutor(_GROUPS_TOGETHER) as threads:

            def begin(at: int) -> list[Future[pa.Table]]:
                together = groups[at : at + _GROUPS_TOGETHER]
                return [threads.submit(group.to_table, columns=self._columns) for group in together]

            following = begin(0)
            for at in range(_GROUPS_TOGETHER, len(groups) + _GROUPS_TOGETHER, _GROUPS_TOGETHER):
                read, following = [one.result() for one in following], begin(at)
                if self._settings["shuffled"]:
                    rows = pa.concat_tables(read)
                    places = random.permutation(len(rows))
                    yield from self._cut({name: rows[name].to_numpy()[places] for name in self._columns})
                    continue
                for group in read:  # whose rows are a multiple of the batch
                    yield from self._cut({name: group[name].to_numpy() for name in self._columns})

    def _cut(self, rows: dict[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, torch.Tensor]]:
        columns = {name: torch.from_numpy(column) for name, column in rows.items()}
        for first in range(0, len(rows[ROW]), self._batch_size):
            yield {name: column[first : first + self._batch_size] for name, column in columns.items()}


def _open(text: str) -> ds.Dataset:
    scheme, _, host = os.environ["AWS_ENDPOINT_URL"].partition("://")
    store = S3FileSystem(
        endpoint_override=host,
        scheme=scheme,
        region="us-east-1",
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        force_virtual_addressing=False,
    )
    return ds.dataset(text.removeprefix("s3://"), format="parquet", filesystem=store)


def main() -> None:
    """Run."""
    settings = read_settings()
    pa.set_cpu_count(settings["workers"])
    pa.set_io_thread_count(16)
    take(_Batches(settings), settings)


if __name__ == "__main__":
    main()
