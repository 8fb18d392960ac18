"""Writes the pictures as MDS shards, with mosaicml-streaming's own writer."""

from __future__ import annotations

import json
import sys

from streaming import MDSWriter  # type: ignore[import-not-found]  # lives in the peers' environment

from tests.bench.arms.samples import samples_of, shards_of


def main() -> None:
    """Read settings from the first argument and write."""
    settings = json.loads(sys.argv[1])
    columns = {"jpg": "bytes", "cls": "int"}
    with MDSWriter(out=settings["target"], columns=columns, size_limit=settings["limit_bytes"]) as writer:
        for shard in shards_of(settings["source"]):
            for picture, label in samples_of(shard):
                writer.write({"jpg": picture, "cls": label})


if __name__ == "__main__":
    main()
