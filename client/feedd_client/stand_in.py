"""A trainer that only takes batches, as fast as they come: ``feedd doctor URL`` measures what it gets.

Prints one JSON object per line. It takes batches until a line comes on stdin. Each further line is a number of seconds:
the same batches are taken again and again for that long.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING

from feedd_client import FeedDataset, FeedError

if TYPE_CHECKING:
    from collections.abc import Sequence


def say(event: str, **facts: object) -> None:
    """Print one event as a JSON line."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m feedd_client.stand_in", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--fields", type=json.loads, default=None)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--decoded", action="store_true")
    return parser.parse_args(argv)


def take_until_line(dataset: FeedDataset) -> tuple[int, float]:
    """Take batches, epoch after epoch, until a line comes on stdin; return how many in how many seconds."""
    ends = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        ends.set()

    threading.Thread(target=listen, daemon=True).start()
    count, began_s = 0, time.perf_counter()
    while not ends.is_set():
        before = count
        for _ in dataset:
            count += 1
            if count == 1:
                say("began")
            if ends.is_set():
                break
        if count == before:
            break
    return count, time.perf_counter() - began_s


def replay(dataset: FeedDataset, count: int, seconds: float) -> tuple[int, float]:
    """Take the first batches again and again; return how many in how many seconds."""
    taken, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        dataset.set_epoch(0)
        found = sum(1 for _ in islice(dataset, count))
        if not found:
            break
        taken += found
    return taken, time.perf_counter() - began_s


def main(argv: Sequence[str] | None = None) -> int:
    """Take batches; return 1 and print an ``error`` event if feedd raises an error."""
    options = parse(argv)
    try:
        dataset = FeedDataset(
            options.url,
            batch_size=options.batch_size,
            fields=options.fields,
            shuffle=False,
            address=options.address,
            decoded_cache=options.decoded,
        )
        say("opens")
        count, took_s = take_until_line(dataset)
        say("took", batches=count, seconds=took_s)
        for line in sys.stdin:
            seconds = float(line)
            taken, took_s = replay(dataset, count, seconds)
            say("replayed", batches=taken, seconds=took_s)
        dataset.close()
    except FeedError as error:
        say("error", message=error.message, object=error.object, hint=error.hint)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
