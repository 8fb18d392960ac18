"""What the arms of the bench of packing share: what is to be packed, and what it cost."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def measured(work: Callable[[], object]) -> None:
    """Run the work after all imports, and print what it cost."""
    before_s, began_s = cpu_s(), time.perf_counter()
    work()
    took_s, after_s = time.perf_counter() - began_s, cpu_s()
    print(json.dumps({"cpu_s": after_s, "work_cpu_s": after_s - before_s, "work_s": took_s}), flush=True)


def files(source: str) -> list[tuple[str, int]]:
    """Return the path of each picture below a folder, and the number of its folder."""
    folders = sorted(entry.path for entry in os.scandir(source) if entry.is_dir())
    return [
        (entry.path, number)
        for number, folder in enumerate(folders)
        for entry in sorted(os.scandir(folder), key=lambda one: one.name)
    ]


def keys(client: Any, source: str) -> list[tuple[str, int]]:
    """Return the key of each picture below a prefix, and the number of its folder."""
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = [item["Key"] for page in pages for item in page["Contents"] if item["Key"].endswith(".jpg")]
    numbers = {folder: number for number, folder in enumerate(sorted({str(Path(key).parent) for key in found}))}
    return [(key, numbers[str(Path(key).parent)]) for key in found]
