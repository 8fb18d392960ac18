"""Makes the peers' environment: ``python -m tests.bench.setup_peers [pip option ...]``.

Everything after the module's name goes to pip. torch must come as a wheel for CPUs, such as 2.13.0+cpu, which pip
prefers to the ordinary one of the same version: name an index that has such wheels, or a folder of wheels with
``--find-links``. Where pip's own settings (``PIP_FIND_LINKS``) have brought ``make venv`` its torch, they do so here.
The plan is made with ``--dry-run`` first, and refused where it would bring CUDA packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.peers import PEER_VENV, REQUIREMENTS, find_peers

_CUDA_PREFIXES = ("nvidia-", "cuda-", "triton", "torchvision")
_NO_DEPS_MARK = "# no-deps: "


def _pip(*arguments: str) -> None:
    subprocess.run([PEER_VENV / "bin" / "python", "-m", "pip", "-q", *arguments], check=True)


def _cuda_packages(pip_options: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        _pip("install", "--dry-run", "--report", str(report), "-r", str(REQUIREMENTS), *pip_options)
        planned = [item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]]
    return [name for name in planned if name.startswith(_CUDA_PREFIXES)]


def main(pip_options: list[str]) -> int:
    """Create or complete the environment; return the exit status."""
    if not (PEER_VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", PEER_VENV], check=True)
    unwanted = _cuda_packages(pip_options)
    if unwanted:
        print(f"expected a plan without CUDA packages, got {', '.join(unwanted)}: name an index of CPU wheels of torch")
        return 1
    _pip("install", "-r", str(REQUIREMENTS), *pip_options)
    lines = REQUIREMENTS.read_text().splitlines()
    bare = [line.removeprefix(_NO_DEPS_MARK) for line in lines if line.startswith(_NO_DEPS_MARK)]
    _pip("install", "--no-deps", *bare, *pip_options)
    peers = find_peers()
    print(peers.versions if peers else "expected a complete environment, got one in which a peer is missing")
    return 0 if peers else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
