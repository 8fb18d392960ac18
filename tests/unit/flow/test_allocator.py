"""Freed large blocks leave the process."""

from __future__ import annotations

import subprocess
import sys

from tests.budget import PATIENT_S

_CODE = """
import sys
from pathlib import Path
from feedd.flow.allocator import return_large_blocks

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

if sys.argv[1] == "set":
    assert return_large_blocks()
bytearray(b"1" * (30 << 20))  # by default, the limit grows when this is freed
blocks, small = [], []
for _ in range(8):
    blocks.append(bytearray(b"1" * (8 << 20)))
    small.append(bytearray(b"1" * 1000))
before = anonymous()
del blocks[:-1]
print(before - anonymous())
"""


def _freed_bytes(how: str) -> int:
    """Return by how much a process shrinks that frees seven blocks of 8 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, how], capture_output=True, text=True, check=True, timeout=PATIENT_S
    )
    return int(done.stdout)


def test_large_blocks_are_returned_to_the_system_when_they_are_freed() -> None:
    """Otherwise they stay with the process, below the last block."""
    assert _freed_bytes("set") >= 7 * (8 << 20)
    assert _freed_bytes("default") < 1 << 20
