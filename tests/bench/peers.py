"""Where the peers live: an optional environment beside the project's own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER_VENV = ROOT / ".venv-bench"
REQUIREMENTS = Path(__file__).with_name("requirements-peers.txt")
STUBS = Path(__file__).with_name("stubs")
HOW_TO_INSTALL = "peers are not installed: run `.venv/bin/python -m tests.bench.setup_peers` once"

_VERSIONS = """
import importlib.metadata as m, json, platform
names = ("mosaicml-streaming", "litdata", "webdataset", "obstore", "boto3", "awscrt",
         "s3torchconnector", "aiobotocore", "uvloop", "torch", "numpy", "simplejpeg",
         "opencv-python-headless")
print(json.dumps({"python": platform.python_version(), **{n: m.version(n) for n in names}}))
"""


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers' interpreter, and what it needs in its environment.

    Attributes:
        python: interpreter of the peers' environment.
        environment: variables for its processes, on top of ``os.environ``.
        versions: JSON text of package versions.
    """

    python: Path
    environment: dict[str, str]
    versions: str


def find_peers() -> Peers | None:
    """Return the peers' environment, or None where it is missing or incomplete."""
    python = PEER_VENV / "bin" / "python"
    if not python.exists():
        return None
    probe = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=False, timeout=120)
    if probe.returncode:
        return None
    environment = {
        "PYTHONPATH": os.pathsep.join((str(STUBS), str(ROOT))),
        # asks a package registry at every start otherwise, which is time and network no other arm spends
        "LITDATA_DISABLE_VERSION_CHECK": "1",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    }
    return Peers(python, environment, probe.stdout.strip())
