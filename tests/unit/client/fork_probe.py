"""Run as a process by test_client_processes: one dataset in a parent that iterates, forks, workers and threads."""

from __future__ import annotations

import json
import os
import sys
from multiprocessing import get_start_method

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from feedd_client import FeedDataset, FeedError, Topology
from tests.fakes.feed_client import ids


def _in_child(address: str, dataset: FeedDataset, running: object) -> dict[str, object]:
    """Fork in the middle of a pass; the child makes its own pass and may not go on with the parent's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(running)  # type: ignore[call-overload]  # a pass of the parent's
            refused = False
        except FeedError:
            refused = True
        told = {"refused": refused, "ids": [number for batch in dataset for number in ids(batch)]}
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return dict(json.loads(text))


def main() -> None:
    """Print what was seen."""
    address = sys.argv[1]
    dataset = FeedDataset("s3://b/", batch_size=4, address=address)
    running = iter(dataset)
    first = ids(next(running))
    found: dict[str, object] = {"child": _in_child(address, dataset, running), "start": get_start_method()}
    found["parent"] = first + [number for batch in running for number in ids(batch)]
    for workers in (2, 3):
        fresh = FeedDataset("s3://b/", batch_size=4, address=address)
        loader = DataLoader(fresh, batch_size=None, num_workers=workers)
        found[f"workers_{workers}"] = [[number for batch in loader for number in ids(batch)] for _ in range(2)]
    ranked = FeedDataset("s3://b/", batch_size=4, address=address, topology=Topology(2, 0, 2, 0, 1, 0))
    try:
        list(DataLoader(ranked, batch_size=None, num_workers=1))
    except FeedError as error:
        found["join_in_worker"] = str(error)
    stateful = StatefulDataLoader(FeedDataset("s3://b/", batch_size=4, address=address), batch_size=None, num_workers=2)
    batches = iter(stateful)
    seen = [ids(next(batches)) for _ in range(5)]
    state = stateful.state_dict()
    del batches
    again = StatefulDataLoader(FeedDataset("s3://b/", batch_size=4, address=address), batch_size=None, num_workers=2)
    again.load_state_dict(state)
    found["stateful"] = [number for batch in [*seen, *map(ids, again)] for number in batch]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
