"""Run as two processes by test_client_leaving: ranks that leave passes early, with batches in flight."""

from __future__ import annotations

import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from feedd_client import FeedDataset, RanksDisagree
from feedd_client.lane import CopyLane, DevicePass
from feedd_client.outputs import Outputs
from feedd_client.progress import Progress
from tests.fakes.host_copier import LateCopier

PREFETCH = 2


def _ahead(dataset: FeedDataset, fails_at: int | None = None) -> DevicePass:
    """Begin a pass that copies ahead, as on a GPU."""
    progress = Progress(dataset)
    lane = CopyLane(dataset.start_pass(copy=False), LateCopier(fails_at), PREFETCH, progress)
    return DevicePass(progress, lane, Outputs(None))


def _leave_early(address: str, rank: int) -> list[int]:
    """Break out on all ranks after some steps, one rank far ahead in what it has copied; then read a whole pass."""
    dataset = FeedDataset("s3://b/", batch_size=4, address=address)
    seen = []
    for step_count in (0, 1, 3):
        batches = _ahead(dataset)
        time.sleep(0.4 * (rank == 1))
        for _ in range(step_count):
            next(batches)
        time.sleep(0.4 * (rank == 0))
        del batches
        gc.collect()
        seen.append(sum(1 for _ in _ahead(dataset)))
    dataset.close()
    return seen


def _left_alone(address: str, rank: int, *, ahead: bool) -> str:
    """Leave on rank 1 only, which then lives on; return what rank 0 is told."""
    dataset = FeedDataset("s3://b/", batch_size=4, address=address)
    batches = _ahead(dataset, fails_at=2 if rank else None) if ahead else iter(dataset)
    said = ""
    try:
        for step, _ in enumerate(batches):
            if rank == 1 and not ahead and step == 1:
                break
    except (RanksDisagree, RuntimeError) as error:
        said = str(error)
    del batches
    dist.barrier()  # rank 1 is here, alive, long before rank 0
    return said


def main() -> None:
    """Print what this rank saw."""
    address, empty = sys.argv[1:3]
    torch.cuda.current_stream = lambda _device=None: None  # type: ignore[assignment,return-value]  # there is no GPU
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"file://{os.environ['MEETING']}", rank=rank, world_size=world_size)
    found: dict[str, object] = {"after_leaving": _leave_early(address, rank)}
    last_empty = FeedDataset("s3://b/", batch_size=4, address=empty)
    found["rows"] = [len(batch["cls"]) for batch in last_empty]
    found["length"] = len(last_empty)
    last_empty.close()
    uneven = FeedDataset("s3://b/", batch_size=4, address=address)
    found["taken"] = sum(1 for _ in uneven)
    found["uneven_length"] = len(uneven)
    uneven.close()
    found["failed"] = _left_alone(address, rank, ahead=True)
    found["broke_alone"] = _left_alone(address, rank, ahead=False)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
