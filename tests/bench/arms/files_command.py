"""Arm: runs one command that copies objects to files, checks the files, prints its time and CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run."""
    settings = json.loads(sys.argv[1])
    began_s = time.perf_counter()
    child = subprocess.Popen(settings["command"], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - began_s
    if status:
        raise SystemExit(f"expected exit code 0, got {os.waitstatus_to_exitcode(status)}")
    found = [path for path in Path(settings["folder"]).rglob("*") if path.is_file()]
    size_bytes = sum(path.stat().st_size for path in found)
    if (len(found), size_bytes) != (settings["count"], settings["bytes"]):
        raise SystemExit(f"expected {settings['count']} files, got {len(found)} of {size_bytes} bytes")
    cpu_s = used.ru_utime + used.ru_stime
    row = {"wall_s": wall_s, "cpu_s": cpu_s, "bytes_per_s": size_bytes / wall_s, "files_per_s": len(found) / wall_s}
    print(json.dumps(row | {"cpu_s_per_gb": cpu_s / size_bytes * 1e9, "cpu_ms_per_file": cpu_s / len(found) * 1e3}))


if __name__ == "__main__":
    main()
