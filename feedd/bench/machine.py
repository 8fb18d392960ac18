"""What figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

_PACKAGES = ("uvloop", "aiobotocore", "awscrt", "httptools")


def first_value(path: str, name: str) -> str:
    """Return what a ``name: value`` file of /proc says of ``name`` first; empty where nothing."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def facts() -> dict[str, Any]:
    """Return them; no host name, no paths."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": first_value("/proc/cpuinfo", "model name"),
        "memory": first_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
