"""Run as processes by test_client_autostart: trains without an address, then waits to be killed."""

from __future__ import annotations

import os
import sys

from feedd_client import FeedDataset, Topology


def main() -> None:
    """Say what was seen, and stay, in the folder that is named."""
    os.chdir(sys.argv[1])
    if os.environ.get("PROBE_HIDES_FEEDD"):
        sys.modules["feedd"] = None  # type: ignore[assignment]  # how Python spells a package that is not installed
    stall_s = float(os.environ.get("PROBE_STALL_S", "120"))
    dataset = FeedDataset("s3://b/", batch_size=4, topology=Topology(), stall_timeout_s=stall_s)
    count = sum(1 for _ in dataset)
    print(count, os.environ["FEEDD_ADDRESS"], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
