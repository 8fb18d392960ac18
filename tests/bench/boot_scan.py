"""Bench: how long a cache of a million entries takes to start, to serve its first entry, and to know all of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache import entry_layout
from feedd.cache.recovery import Journal, Record, boot_id, record_of
from feedd.values import ObjectRef
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.report import Column, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.plan import Plan

_ENTRIES, _QUICK_ENTRIES = 1_000_000, 20_000
_ROUNDS_MAX = 3
_TIMEOUT_S = 600.0
_RUN = bytes(16)
COLUMNS = (
    Column("entries", "entry_count", digits=0),
    Column("open, s", "open_s", digits=2, spread=True),
    Column("first hit, s", "first_hit_s", digits=2, spread=True),
    Column("all known, s", "known_s", digits=2, spread=True),
    Column("CPU s until then", "cpu_s", digits=2),
    Column("close, s", "close_s", digits=2),
)


def ref_of(number: int) -> ObjectRef:
    """Return the object of one entry: a name as datasets have them, and no bytes."""
    return ObjectRef("s3://training-data", f"imagenet/train/shard-{number:08d}.tar", 0, f"{number:032x}-12")


def run(plan: Plan) -> Result:
    """Measure."""
    count = _QUICK_ENTRIES if plan.quick else _ENTRIES
    folder = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        plan.say(f"boot_scan: writing {count:,} entries")
        directory = folder / "cache"
        _populate(directory, count)
        settings = {"directory": str(directory), "entry_count": count}
        arms = [
            Arm(name, "tests.bench.arms.boot_feedd", Path(sys.executable), settings={**settings, "list_lost": lost})
            for name, lost in (("with its list", False), ("list lost", True))
        ]

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"boot_scan: round {round_index}, {arm.name}")
            return run_arm(arm, {}, _TIMEOUT_S)

        result = Result("boot_scan", "start of a cache that holds very many entries", COLUMNS, [])
        result.outcomes = interleave(arms, min(plan.round_count, _ROUNDS_MAX), once, plan.say, first_round=1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.notes = [
        "Entries lie on tmpfs: a disk adds its own time to list folders, and, where the list is lost, to open files.",
        "With the list lost the cache serves while it examines its files; the hit is then a fetch of an empty object.",
    ]
    return result


def _populate(directory: Path, count: int) -> None:
    """Write entries as a run of this boot would have left them."""
    for number in range(256):
        (directory / entry_layout.FORMAT_FOLDER / f"{number:02x}").mkdir(parents=True)
    listing = Journal(directory)
    listing.start(_written(directory, count, boot_id()))
    listing.close()


def _written(directory: Path, count: int, boot: bytes) -> Iterator[Record]:
    for number in range(count):
        ref = ref_of(number)
        path = entry_layout.file_path(directory, ref)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, entry_layout.pack_header(ref, boot, _RUN, b""))
        os.close(fd)
        yield record_of(ref, boot, _RUN)
