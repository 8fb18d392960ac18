"""Processes of other users of this machine. They need root; each runs in a mount namespace of its own.

The interpreter may lie in a home folder that only root can enter. In the namespace that folder is replaced by an empty
one, with only the interpreter's folder in it, so that no permission of the machine changes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.fakes.forks import Talker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
DAEMON_UID, ALICE, MALLORY, BOB = 61001, 61002, 61003, 61004
"""Users that exist in no list of this machine: the daemon's own, and its clients."""

_HIDE: Final = """
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
"""
_PRIVATE: Final = ("sh", "-c", f"mount --make-rprivate /\n{_HIDE}", "sh")
_SCRIPT: Final = f"""{_HIDE}
uid=$1; shift
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""
_CLONE_NEWNS: Final = 0x00020000
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24


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


class Started:
    """Python code that runs as a user; a context manager that ends it whatever happened.

    It is forked from a process that has imported what clients need. Then it takes the same steps as a command of
    ``command_of``, so that the kernel sees a process of that user, without any rights, that nobody else may look into.

    Attributes:
        pid: of the process.
    """

    def __init__(self, uid: int, code: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        hidden = _closed_folder(Path(sys.base_prefix)) if uid else None
        body = partial(_as_user, uid, str(hidden or ""), code)
        self._process = Talker(f"user {uid}", body, arguments, environment(env), Path(os.devnull))
        self.pid = self._process.pid

    def line(self) -> str:
        """Return the next line that it prints."""
        return self._process.stdout.readline().decode()

    def rest(self, timeout_s: float = 60.0) -> str:
        """Close its input, wait for its end and return what it has printed since."""
        return self._process.communicate(timeout_s).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.__exit__()


def run_as(uid: int, code: str, *arguments: str, env: dict[str, str] | None = None, timeout_s: float = 60.0) -> str:
    """Run Python code as a user and return what it prints, also on its standard error."""
    with Started(uid, code, arguments, env) as started:
        return started.rest(timeout_s)


def started_as(uid: int, code: str, *arguments: str, env: dict[str, str] | None = None) -> Started:
    """Start Python code as a user; the caller ends it."""
    return Started(uid, code, arguments, env)


def _as_user(uid: int, hidden: str, code: str) -> None:
    """Become a user, as ``_SCRIPT`` does, and run code."""
    os.dup2(1, 2)
    os.chdir(ROOT)
    if uid:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        mounts = [*_PRIVATE, hidden, *([sys.base_prefix] if hidden else [])]
        subprocess.run(mounts, check=True, stdin=subprocess.DEVNULL, timeout=60)
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after any exec: its own files in /proc are its own
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process of another user: no home, nothing of this daemon's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEEDD_", "AWS_", "HOME"))}
    path = os.pathsep.join((str(ROOT), str(ROOT / "client"), kept.get("PYTHONPATH", "")))
    return kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"} | dict(more or {})
