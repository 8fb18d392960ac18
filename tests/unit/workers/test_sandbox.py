"""What a decode worker cannot do any more, asked of the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from feedd.workers import sandbox
from tests.budget import PATIENT_S
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
HERE = sandbox.supported()
_START = """
import fcntl, os, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
from feedd.workers import sandbox
ours, theirs = socket.socketpair()
parent = os.getppid()
print(sandbox.enter([sys.argv[1]]))
"""


def run(code: str, readable: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a sandbox."""
    return subprocess.run(
        [sys.executable, "-c", _START + code, str(readable)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENT_S,
        check=False,
    )


def tried(attempts: list[str], readable: Path) -> dict[str, str]:
    """Return what each attempt comes to, all in one process."""
    lines = []
    for attempt in attempts:
        body = "\n    ".join(attempt.split("; "))
        lines += [f"try:\n    {body}", "except PermissionError:\n    print('refused')", "else:\n    print('done')"]
    done = run("\n".join(lines) + "\n", readable)
    assert not done.returncode, done.stderr
    return dict(zip(attempts, done.stdout.splitlines()[1:], strict=True))


@pytest.mark.skipif(not HERE.seccomp, reason="needs seccomp")
def test_no_sockets_programs_or_other_processes(tmp_path: Path) -> None:
    """Each is refused with EPERM, which an honest library reports as an error."""
    attempts = [
        "socket.socket()",
        "socket.socketpair()",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.kill(parent, 0)",
        "os.pidfd_open(parent)",
        "resource.prlimit(parent, resource.RLIMIT_CORE)",
        "os.setresuid(1, 1, 1)",
        "os.setpriority(os.PRIO_PROCESS, parent, 19)",
        "os.sched_setaffinity(parent, os.sched_getaffinity(0))",
        "fcntl.fcntl(ours, fcntl.F_SETOWN, parent)",
        "fcntl.fcntl(ours, 10, signal.SIGTERM)",
    ]
    assert tried(attempts, tmp_path) == dict.fromkeys(attempts, "refused")


@pytest.mark.skipif(not HERE.seccomp, reason="needs seccomp")
def test_nobody_else_gets_rights_to_a_file(tmp_path: Path) -> None:
    """Landlock has no right for modes, owners, attributes and times, and older kernels have none for lengths."""
    (tmp_path / "shard").write_text("bytes")
    before = (tmp_path / "shard").stat()
    path = "Path(sys.argv[1], 'shard')"
    attempts = [
        f"{path}.chmod(0o666)",
        f"os.chmod(os.open({path}, os.O_RDONLY), 0o666)",
        f"os.chown({path}, 1, 1)",
        f"os.chown(os.open({path}, os.O_RDONLY), 1, 1)",
        f"os.lchown({path}, 1, 1)",
        "os.chmod('shard', 0o666, dir_fd=os.open(sys.argv[1], os.O_RDONLY))",
        "os.chown('shard', 1, 1, dir_fd=os.open(sys.argv[1], os.O_RDONLY))",
        f"os.setxattr({path}, 'user.x', b'x')",
        f"os.setxattr({path}, 'user.x', b'x', follow_symlinks=False)",
        f"os.utime({path}, (1, 1))",
        f"os.truncate({path}, 0)",
    ]
    assert tried(attempts, tmp_path) == dict.fromkeys(attempts, "refused")
    after = (tmp_path / "shard").stat()
    assert (after.st_mode, after.st_uid, after.st_size, after.st_mtime_ns) == (
        before.st_mode, before.st_uid, before.st_size, before.st_mtime_ns,
    )  # fmt: skip


@pytest.mark.skipif(not HERE.landlock, reason="needs Landlock")
def test_no_other_files_and_no_writing(tmp_path: Path) -> None:
    """Secrets of the daemon's user, other processes, and the cache itself."""
    (tmp_path / "shard").write_text("bytes")
    attempts = [
        "Path('/etc/passwd').read_text()",
        "os.listdir('/')",
        "Path(f'/proc/{parent}/environ').read_bytes()",
        "Path(sys.argv[1], 'new').write_text('x')",
        "os.truncate(Path(sys.argv[1], 'shard'), 0)",
        "Path(sys.argv[1], 'shard').unlink()",
        "Path('/dev/shm/feedd-sandbox').write_text('x')",
    ]
    assert tried(attempts, tmp_path) == dict.fromkeys(attempts, "refused")
    assert (tmp_path / "shard").read_text() == "bytes"


@pytest.mark.skipif(not HERE.landlock, reason="needs Landlock")
def test_what_the_kernel_says_of_a_worker_stays_readable(tmp_path: Path) -> None:
    """Where memory is short the kernel makes the inodes of /proc anew, which no rule knows: descriptors hold them."""
    code = (
        "print(*(os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 40) if os.path.lexists(f'/proc/self/fd/{fd}')))"
    )
    done = run(f"{code}\nprint(os.getpid())\n", tmp_path)
    assert not done.returncode, done.stderr
    _, held, pid = done.stdout.splitlines()
    assert {f"/proc/{pid}", "/proc/meminfo", "/proc/cpuinfo"} <= set(held.split())


def test_what_decoding_needs_still_works(tmp_path: Path) -> None:
    """Shards, modules, the daemon's socket, memory, threads, own limits."""
    (tmp_path / "shard").write_text("bytes")
    attempts = [
        "Path(sys.argv[1], 'shard').read_text()",
        "import colorsys, sqlite3",
        "ours.send(b'x'), theirs.recv(1)",
        "os.ftruncate(os.memfd_create('x'), 4096)",
        "thread = threading.Thread(target=int); thread.start(); thread.join()",
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 34, 1 << 34))",
        "os.sched_setaffinity(0, os.sched_getaffinity(0))",
        "os.close(os.dup(ours.fileno()))",
        "fcntl.fcntl(ours, fcntl.F_GETFD)",
    ]
    assert tried(attempts, tmp_path) == dict.fromkeys(attempts, "done")


def test_a_worker_that_aborts_still_ends_with_its_signal(tmp_path: Path) -> None:
    """The daemon tells a crash by the signal."""
    assert run("os.abort()", tmp_path).returncode == -signal.SIGABRT
    assert run("os.kill(os.getpid(), signal.SIGKILL)", tmp_path).returncode != 0


def test_what_is_reported_is_what_holds(tmp_path: Path) -> None:
    """``feedd check`` says what the kernel offers; entering gives just that."""
    assert run("", tmp_path).stdout.splitlines()[0] == str(HERE)
