"""Arm: lists a prefix as a daemon does, a number of pages at a time."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
import urllib.request
from typing import Any

from feedd.access import EVERYTHING
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.fingerprint import listing_digest
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3 import listing
from feedd.observe.recorder import NullRecorder


async def _listed(settings: dict[str, Any]) -> dict[str, Any]:
    vars(listing)["IN_FLIGHT_MAX"] = settings["in_flight"]
    async with Sources(SourceOptions(), NullRecorder(), SystemClock()) as sources:
        await sources.warm()
        before, began_s, cpu_s = _request_count(), time.perf_counter(), _cpu_s()
        refs = await sources.resolve([settings["url"]], EVERYTHING)
        row = {"took_s": time.perf_counter() - began_s, "cpu_s": _cpu_s() - cpu_s}
        row["request_count"] = _request_count() - before
        return row | {"digest": listing_digest(refs).hex(), "object_count": len(refs)}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _request_count() -> int:
    with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/__stats", timeout=10) as response:
        return sum(json.load(response)["requests"].values())


def main() -> None:
    """Run."""
    sys.stdout.write("\n" + json.dumps(asyncio.run(_listed(json.loads(sys.argv[1])))) + "\n")


if __name__ == "__main__":
    main()
