"""Processes of other users of this machine. They need root; each runs in a mount namespace of its own.

The interpreter may lie in a home folder that only root can enter. In the namespace that folder is replaced by an empty
one, with only the interpreter's folder in it, so that no permission of the machine changes.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.budget import PATIENT_S

ROOT: Final = Path(__file__).resolve().parents[2]
DAEMON_UID, ALICE, MALLORY, BOB = 61001, 61002, 61003, 61004
"""Users that exist in no list of this machine: the daemon's own, and its clients."""

_SCRIPT: Final = """
set -e
hidden=$1; shift
if [ -n "$hidden" ]; then
  kept=$1; shift
  there=$(mktemp -d)
  mount --bind "$kept" "$there"
  mount -t tmpfs -o mode=0755 none "$hidden"
  mkdir -p "$kept"
  mount --bind "$there" "$kept"
  umount "$there"
  rmdir "$there"
fi
uid=$1; shift
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""


def command_of(uid: int, command: list[str]) -> list[str]:
    """Return a command that runs another as a user without any rights; as root, with all of them."""
    if not uid:
        return command
    hidden = _closed_folder(Path(sys.base_prefix))
    where = ["", *()] if hidden is None else [str(hidden), sys.base_prefix]
    script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh"]
    return [*script, *where, str(uid), *command]


def _closed_folder(path: Path) -> Path | None:
    """Return the topmost folder above a path that other users cannot enter."""
    return next((one for one in reversed(path.parents) if not one.stat().st_mode & stat.S_IXOTH), None)


@functools.cache
def why_not() -> str:
    """Return why this machine cannot run processes of other users; empty: it can."""
    if os.geteuid():
        return "only root can become other users"
    if not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        return "unshare, setpriv and mount are not installed"
    asked = subprocess.run(
        command_of(ALICE, [sys.executable, "-c", "import os, feedd; print(os.getuid())"]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    return "" if asked.stdout.strip() == str(ALICE) else f"no mount namespace here: {asked.stderr.strip()[-300:]}"


def run_as(
    uid: int, code: str, *arguments: str, env: dict[str, str] | None = None, timeout_s: float = PATIENT_S
) -> str:
    """Run Python code as a user and return what it prints, standard error after it."""
    done = subprocess.run(
        command_of(uid, [sys.executable, "-c", code, *arguments]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(env),
        timeout=timeout_s,
        check=False,
    )
    return done.stdout + done.stderr


def started_as(uid: int, code: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start Python code as a user; its lines are read from ``stdout``. The caller ends it."""
    return subprocess.Popen(
        command_of(uid, [sys.executable, "-c", code, *arguments]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment(env),
    )


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process of another user: no home, nothing of this daemon's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEEDD_", "AWS_", "HOME"))}
    path = os.pathsep.join((str(ROOT), str(ROOT / "client"), kept.get("PYTHONPATH", "")))
    return kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"} | (more or {})
