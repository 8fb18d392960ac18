"""Another process of the machine: works for some milliseconds, sleeps, and now and then works for longer."""

from __future__ import annotations

import random
import sys
import time

_LONG_EACH = 20


def main() -> None:
    """Disturb until killed; drawn by the seed that is the first argument."""
    draws = random.Random(int(sys.argv[1]))
    while True:
        busy_s = draws.uniform(0.1, 0.25) if draws.randrange(_LONG_EACH) == 0 else draws.uniform(0.002, 0.025)
        end_s = time.perf_counter() + busy_s
        while time.perf_counter() < end_s:
            pass
        time.sleep(draws.uniform(0.05, 0.2))


if __name__ == "__main__":
    main()
