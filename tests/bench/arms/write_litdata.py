"""Writes the pictures as LitData chunks, with litdata's own ``optimize``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from litdata import optimize  # type: ignore[import-not-found]  # lives in the peers' environment

from tests.bench.arms.samples import samples_of, shards_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_shard(shard: str) -> Iterator[dict[str, bytes | int]]:
    """Yield the samples of one tar shard, as litdata stores them."""
    for picture, label in samples_of(Path(shard)):
        yield {"jpg": picture, "cls": label}


def main() -> None:
    """Read settings from the first argument and write."""
    settings = json.loads(sys.argv[1])
    optimize(
        fn=read_shard,
        inputs=[str(shard) for shard in shards_of(settings["source"])],
        output_dir=settings["target"],
        chunk_bytes=settings["limit_bytes"],
        num_workers=2,
    )


if __name__ == "__main__":
    main()
