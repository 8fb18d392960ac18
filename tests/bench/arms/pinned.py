"""``python -m tests.bench.arms.pinned CORES ARGUMENT ...``: runs ``feedd`` on some cores, a JSON list; empty: all."""

from __future__ import annotations

import json
import os
import sys

from feedd.cli import main

if __name__ == "__main__":
    if cores := json.loads(sys.argv[1]):
        os.sched_setaffinity(0, cores)
    sys.argv = ["feedd", *sys.argv[2:]]
    main()
