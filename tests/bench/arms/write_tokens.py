"""Writes the token data set in the formats of peers, each with its peer's own writer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tests.bench.arms.tokens import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_file(path: str) -> Iterator[torch.Tensor]:
    """Yield the blocks of one file of tokens."""
    for block in np.memmap(path, np.uint16, "r").reshape(-1, TOKENS):
        yield torch.from_numpy(block.copy())


def main() -> None:
    """Read settings from the first argument and write."""
    settings = json.loads(sys.argv[1])
    files = [str(path) for path in sorted(Path(settings["source"]).glob("shard-*.bin"))]
    if settings["format"] == "mds":
        from streaming import MDSWriter  # type: ignore[import-not-found]  # noqa: PLC0415 - only one of them is here

        columns = {"tokens": f"ndarray:uint16:{TOKENS}"}
        with MDSWriter(out=settings["target"], columns=columns, size_limit=settings["limit_bytes"]) as writer:
            for path in files:
                for block in read_file(path):
                    writer.write({"tokens": block.numpy()})
        return
    from litdata import optimize  # type: ignore[import-not-found]  # noqa: PLC0415 - only one of them is here
    from litdata.streaming import TokensLoader  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    optimize(
        fn=read_file,
        inputs=files,
        output_dir=settings["target"],
        chunk_size=TOKENS * settings["shard_samples"],
        item_loader=TokensLoader(block_size=TOKENS),
        num_workers=2,
    )


if __name__ == "__main__":
    main()
