"""Run under torchrun by test_client_compare: ranks without a process group that read the same or other objects."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader

from feedd_client import FeedDataset, RanksDisagree


def main() -> None:
    """Write what this rank saw into a file of the folder."""
    folder, address, changed = sys.argv[1:4]
    found: dict[str, object] = {}

    def read(name: str, dataset: FeedDataset) -> None:
        try:
            found[f"{name}_steps"] = sum(1 for _ in dataset)
        except RanksDisagree as error:
            found[name] = str(error)
        else:
            found[name] = dataset.stats()["ranks_compared"]
        dataset.close()

    workers = DataLoader(FeedDataset("s3://b/", batch_size=4, address=address, uneven="allow"), None, num_workers=1)
    found["epochs"] = [sum(1 for _ in workers) for _ in range(3)]  # new workers for each epoch
    read("same", FeedDataset("s3://b/", batch_size=4, address=address, uneven="allow"))
    read("differ", FeedDataset("s3://b/", batch_size=4, address=changed, uneven="allow"))
    if os.environ["RANK"] == "0":
        read("alone", FeedDataset("s3://b/only-here/", batch_size=4, address=address, uneven="allow"))
    dist.init_process_group("gloo")  # its port is still free
    read("group", FeedDataset("s3://b/", batch_size=4, address=address, uneven="allow"))
    # Workers cannot use the group of the process that started them, but its store.
    for start in ("fork", "spawn"):
        data = FeedDataset("s3://b/", batch_size=4, address=changed, uneven="allow")
        try:
            found[f"{start}_steps"] = sum(
                1 for _ in DataLoader(data, None, num_workers=1, multiprocessing_context=start)
            )
        except RanksDisagree as error:
            found[start] = str(error)
        dist.barrier()
    dist.destroy_process_group()
    Path(folder, os.environ["RANK"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
