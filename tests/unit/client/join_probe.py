"""Run as two processes by test_client_processes: ranks of unequal length that must end together."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist

from feedd_client import DeviceLoader, FeedDataset, RanksDisagree
from tests.fakes.feed_client import ids


def main() -> None:
    """Print what this rank saw."""
    address, told, changed = sys.argv[1:4]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"file://{os.environ['MEETING']}", rank=rank, world_size=world_size)
    found: dict[str, object] = {}
    for name, where in (("join", address), ("told", told)):
        dataset = FeedDataset("s3://b/", batch_size=4, address=where)
        passes = [[ids(batch)[0] for batch in dataset] for _ in range(2)]
        found[name] = [len(one) for one in passes]
        found[f"{name}_left"] = dataset.stats()["leftover_batches"]
        found[f"{name}_state"] = dataset.state_dict()["epoch"]
        dataset.close()
    broken = FeedDataset("s3://b/", batch_size=4, address=address)
    for step, _ in enumerate(broken):
        if step == 2:
            break
    found["after_break"] = sum(1 for _ in DeviceLoader(broken, device="cpu"))
    broken.close()
    alone = FeedDataset("s3://b/", batch_size=None, address=address)
    found["samples"] = sum(1 for _ in alone)
    alone.close()
    other = FeedDataset("s3://b/", batch_size=4, address=changed)
    try:
        iter(other)
    except RanksDisagree as error:
        found["disagree"] = str(error)
    other.close()
    found["topology"] = [os.environ["RANK"], dataset.state_dict()["world_size"]]
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
