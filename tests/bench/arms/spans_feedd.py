"""Arm: an epoch of one large file of tokens through a small cache, by the nodes of a job in turn."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from typing import Any

from feedd_client import FeedDataset, Shuffle, Topology
from tests.bench.arms import daemon

_IDLE_S = 1.0


def _sent_bytes() -> int:
    with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/__stats", timeout=10) as response:
        return int(json.load(response)["body_bytes"])


def _read(settings: dict[str, Any], address: str, node: int) -> dict[str, float]:
    nodes = settings["nodes"]
    dataset = FeedDataset(
        settings["url"],
        batch_size=settings["batch_size"],
        fields={"tokens": settings["field"]},
        shuffle=Shuffle(window_shards=settings["window_shards"]) if settings["window_shards"] else False,
        uneven="allow",
        topology=Topology(nodes, node, 1, 0, nodes, node),
        address=address,
    )
    before, began_s = _sent_bytes(), time.perf_counter()
    first_s, rows = 0.0, 0
    for batch in dataset:
        first_s = first_s or time.perf_counter() - began_s
        rows += len(batch["tokens"])
    epoch_s = time.perf_counter() - began_s
    return {"first_batch_s": first_s, "epoch_s": epoch_s, "rows": rows, "sent_bytes": _sent_bytes() - before}


def main() -> None:
    """Run; the last line is the figures."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    with daemon.running(settings) as address:
        time.sleep(_IDLE_S)
        found = [_read(settings, address, node) for node in range(settings["nodes"])]
    print(
        json.dumps(
            {
                "first_batch_s": found[0]["first_batch_s"],
                "epoch_s": sum(one["epoch_s"] for one in found),
                "rows": sum(one["rows"] for one in found),
                "sent_bytes": sum(one["sent_bytes"] for one in found),
                "most_bytes": max(one["sent_bytes"] for one in found),
            }
        )
    )


if __name__ == "__main__":
    main()
