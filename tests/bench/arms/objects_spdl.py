"""Arm: an epoch over plain objects with an SPDL pipeline: obstore gets many side by side, threads decode."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore  # in the peers' environment
import torch
from obstore.store import S3Store  # in the peers' environment
from spdl.pipeline import PipelineBuilder  # type: ignore[import-not-found]  # in the peers' environment

from tests.bench.arms.consume import consume, read_settings
from tests.bench.arms.decoder import decode_picture
from tests.bench.arms.objects_boto3 import label_of, list_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOWNLOADS = 32
_EPOCH_SEED = 0


class _Pipeline:
    """Lists inside ``iter``, as all others do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        settings = self._settings
        keys = list_keys(settings)
        random.Random(_EPOCH_SEED).shuffle(keys)
        store = S3Store(
            settings["bucket"],
            endpoint=os.environ["AWS_ENDPOINT_URL"],
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

        async def fetch(key: str) -> tuple[str, bytes]:
            answer = await obstore.get_async(store, key)
            return key, bytes(await answer.bytes_async())

        def decode(item: tuple[str, bytes]) -> tuple[np.ndarray, int]:
            return decode_picture(item[1]), label_of(item[0])

        def collate(items: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
            pictures, labels = zip(*items, strict=True)
            return torch.from_numpy(np.stack(pictures)), torch.tensor(labels)

        with ThreadPoolExecutor(settings["workers"]) as decoders:
            pipeline = (
                PipelineBuilder()
                .add_source(keys)
                .pipe(fetch, concurrency=_DOWNLOADS)
                .pipe(decode, executor=decoders, concurrency=settings["workers"])
                .aggregate(settings["batch_size"])
                .pipe(collate)
                .add_sink(settings["prefetch_factor"])
                .build(num_threads=1)
            )
            with pipeline.auto_stop():
                yield from pipeline.get_iterator(timeout=120)


def main() -> None:
    """Run."""
    settings = read_settings()
    consume(_Pipeline(settings), tuple, settings, downloads=_DOWNLOADS)


if __name__ == "__main__":
    main()
