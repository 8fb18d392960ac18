"""``feedd serve`` whose connections say that the store is so many seconds away: the first argument."""

from __future__ import annotations

import sys

from feedd.cli import main as feedd
from feedd.fetch.s3 import pool


def main() -> None:
    """Run ``feedd`` with the other arguments."""
    far_s = float(sys.argv.pop(1))
    pool.round_trip_s = lambda sock: far_s if sock else None
    feedd()


if __name__ == "__main__":
    main()
