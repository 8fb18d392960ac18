"""What the figures were measured on: facts that go into the JSON and above the tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.peers import ROOT

if TYPE_CHECKING:
    from tests.bench.peers import Peers

_PACKAGES = ("torch", "numpy", "grpcio", "protobuf", "uvloop", "aiobotocore", "simplejpeg", "opencv-python-headless")


def _first_value(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def facts(peers: Peers | None) -> dict[str, Any]:
    """Return them; no host name, no paths."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _first_value("/proc/cpuinfo", "model name"),
        "memory": _first_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "commit": _commit(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "peer_versions": json.loads(peers.versions) if peers else None,
    }
