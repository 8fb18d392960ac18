"""Run as a process by test_client_processes: forks that follow at once upon a channel's or a pass' end."""

from __future__ import annotations

import json
import os
import sys
import time

from feedd_client import FeedDataset
from feedd_client.transport import Endpoint, parse_address

CHILDREN = 3
CHILD_S = 10.0


def _take(dataset: FeedDataset) -> None:
    assert sum(1 for _ in dataset)


def _ask(address: str) -> None:
    endpoint = Endpoint(parse_address(address))
    endpoint.close_session("nobody's", 10.0)
    endpoint.close()


def _reap(children: set[int]) -> int:
    """Return how many children ended well; those that hang are killed."""
    well, deadline = 0, time.monotonic() + CHILD_S
    for pid in sorted(children):
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
                ended = os.waitpid(pid, 0)
                break
            time.sleep(0.001)  # waitpid knows no deadline
        well += ended[1] == 0
    return well


def main() -> None:
    """Print how many of the children opened a channel, asked and ended; with ``passes``, took their parent's data."""
    address, rounds, passes = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["passes"]
    dataset = FeedDataset("s3://b/", batch_size=4, address=address)

    def use() -> None:
        if passes:
            _take(dataset)
        else:
            _ask(address)

    well = 0
    for _ in range(rounds):
        use()
        children = set()
        for _ in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                use()
                os._exit(0)
            children.add(pid)
        well += _reap(children)
    print(json.dumps({"well": well}))


if __name__ == "__main__":
    main()
