"""Choosing the daemon's address, and starting a daemon for this process tree if none runs.

An ephemeral daemon belongs to the process tree that started it. Each process holds a connection to it (``HOLD!``). The
daemon ends when the last of these processes ends, however that process died.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd_client import shm
from feedd_client.errors import DaemonStartError
from feedd_client.executable import VARIABLE as EXECUTABLE_VARIABLE
from feedd_client.executable import find_executable
from feedd_client.transport import (
    MEMORY_HINT,
    UDS_PATH_MAX,
    answers,
    killed,
    killed_by,
    lane_address,
    parse_address,
    peer_credentials,
    probe,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd_client.executable import Executable
    from feedd_client.transport import Address

_log: Final = logging.getLogger("feedd_client")
DEFAULT_ADDRESS: Final = "unix:///run/feedd/feedd.sock"
ADDRESS_VARIABLE: Final = "FEEDD_ADDRESS"
_CACHE_VARIABLE: Final = "FEEDD_CACHE__DIR"
EPHEMERAL_VARIABLE: Final = "FEEDD_EPHEMERAL_ADDRESS"  # equals FEEDD_ADDRESS if this process tree started the daemon
_OURS: Final = {ADDRESS_VARIABLE, EPHEMERAL_VARIABLE, EXECUTABLE_VARIABLE}
START_TIMEOUT_S: Final = 60.0
STALE_AFTER_S: Final = 3600.0
_CACHE_FILE: Final = "cache-dir"
_SHORT: Final = "/tmp"  # noqa: S108 - only a directory of this user alone is used there
_PAGE_SUFFIX: Final = ".page"
_LOG_LINES: Final = 15

_children: list[subprocess.Popen[bytes]] = []  # kept, so that ended daemons are reaped without a ResourceWarning


def resolve_address(explicit: str | None) -> str:
    """Return the daemon's address; start a daemon if no address is given and none answers at the default address.

    A daemon that answered at the default address once is this process tree's from then on. If it is away later, it is
    restarting, and the client waits for it.

    Raises:
        DaemonStartError: the daemon did not start.
        BadOptionError: the address is malformed.
    """
    named = explicit or os.environ.get(ADDRESS_VARIABLE)
    if named and named != os.environ.get(EPHEMERAL_VARIABLE):
        parse_address(named)
        return named
    if named:
        return _ephemeral(named)
    default = parse_address(DEFAULT_ADDRESS)
    reason = probe(default)
    if reason is not None and probe(lane_address(default, 1)) is not None:  # one lane of a node may be starting again
        return _ephemeral(None, reason)
    os.environ[ADDRESS_VARIABLE] = DEFAULT_ADDRESS
    return DEFAULT_ADDRESS


def launch_key(env: Mapping[str, str], pid: int) -> str:
    """Return a name shared by all ranks of one launch on this node; without a launcher, a name of this process."""
    torchrun = env.get("TORCHELASTIC_RUN_ID")
    master = (env.get("MASTER_ADDR"), env.get("MASTER_PORT"))
    if torchrun is not None or all(master):
        parts: tuple[object, ...] = ("torch", torchrun, *master)
    elif "SLURM_JOB_ID" in env and "SLURM_PROCID" in env:
        parts = ("slurm", env["SLURM_JOB_ID"], env.get("SLURM_STEP_ID"), env.get("SLURM_NODEID"))
    elif "OMPI_COMM_WORLD_RANK" in env and "PMIX_NAMESPACE" in env:
        parts = ("mpi", env["PMIX_NAMESPACE"])
    else:
        parts = ("process", pid, time.time_ns())  # noqa: TID251 - tells apart two processes of one pid
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def base_dir(env: Mapping[str, str]) -> Path:
    """Return this user's private directory for sockets; create it if missing.

    The directory lies in the first writable folder with a short path: ``XDG_RUNTIME_DIR``, ``TMPDIR``, ``/tmp``.

    Raises:
        DaemonStartError: the directory belongs to another user, or no folder is writable and has a short path.
    """
    path = next(iter(_short_paths(env)), None)
    if path is None:
        raise DaemonStartError(
            "expected a writable folder with a short path for the socket of a daemon, got none",
            hint="set TMPDIR or XDG_RUNTIME_DIR to a folder such as /tmp, or FEEDD_ADDRESS to a running daemon; "
            f"{_CACHE_VARIABLE} says where the daemon keeps its cache",
        )
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        stat = path.lstat()
    except OSError as error:
        raise DaemonStartError(f"expected a writable directory, got {error}", object=str(path)) from None
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077 or path.is_symlink():
        raise DaemonStartError(
            f"expected a directory of this user only, got uid {stat.st_uid} mode {stat.st_mode & 0o777:o}",
            object=str(path),
            hint="remove it, or set FEEDD_ADDRESS",
        )
    return path


def _short_paths(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield where this user's directory may lie, best first."""
    parents = [env.get("XDG_RUNTIME_DIR", "")]
    with contextlib.suppress(FileNotFoundError):  # nothing is writable, not even the working directory
        parents.append(tempfile.gettempdir())
    for parent in (*parents, _SHORT):
        path = Path(parent, f"feedd-{os.getuid()}")
        is_short = len(os.fsencode(path)) <= UDS_PATH_MAX - len("/0123456789abcdef/feedd.sock")
        if parent and is_short and os.access(parent, os.W_OK | os.X_OK):
            yield path


def _ephemeral(named: str | None, reason: OSError | None = None) -> str:
    if named:
        socket_path = Path(parse_address(named).uds_path or "")
        directory = socket_path.parent
    else:
        base = base_dir(os.environ)
        _sweep(base)
        directory = base / launch_key(os.environ, os.getpid())
        socket_path = directory / "feedd.sock"
    address = f"unix://{socket_path}"
    if not (shm.holds_alive() and named):
        with _locked(directory / "lock", makes_folder=True):
            if not _try_hold(socket_path):
                how = killed(address)
                former = f": {how}" if how else ""
                program, log_path = _start(address, socket_path)
                _log.log(
                    logging.INFO if _log.isEnabledFor(logging.INFO) else logging.WARNING,  # always visible, once
                    "started a feedd daemon for this job%s; it stops when the job ends%s. %sCache: %s. Log: %s%s",
                    "" if reason else f", because the former daemon ended{former}",
                    ""
                    if _CACHE_VARIABLE in os.environ
                    else f", and its cache is deleted (set {_CACHE_VARIABLE} to keep it)",
                    f"Started with {program.command[0]}. " if program.is_foreign else "",
                    _cache_of(socket_path),
                    log_path,
                    _page_of(socket_path),
                )
    os.environ[ADDRESS_VARIABLE] = os.environ[EPHEMERAL_VARIABLE] = address
    return address


def end_silent(address: Address, timeout_s: float) -> None:
    """Kill this process tree's daemon if it does not answer; the next connect starts another. Spare other daemons."""
    if address.uds_path is None or address.text != os.environ.get(EPHEMERAL_VARIABLE):
        return
    with contextlib.suppress(OSError), _locked(Path(address.uds_path).with_name("lock")):
        pid = _server_pid(address.uds_path)
        if pid and not answers(address, timeout_s):  # it answers if another process has already replaced it
            _log.warning("killing the daemon of this process tree (pid %d), which does not answer", pid)
            started.pop(address.text, None)
            os.kill(pid, signal.SIGKILL)


def _server_pid(uds_path: str) -> int:
    """Return the id of the listening process; 0 if it belongs to another user or is invisible from here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.settimeout(1.0)
        unix.connect(uds_path)
        pid, uid = peer_credentials(unix)
    return pid if uid == os.getuid() else 0


def _start(address: str, socket_path: Path) -> tuple[Executable, Path]:
    """Start the daemon, wait until it is ready, and return its program and its log.

    Raises:
        DaemonStartError: there is no program to start, or the daemon did not become ready.
    """
    program = find_executable(os.environ, DEFAULT_ADDRESS)
    command = [*program.command, "serve", "--ephemeral", "--listen", address]
    log_path = socket_path.with_name("feedd.log")
    with log_path.open("wb") as log:
        try:
            child = subprocess.Popen(  # noqa: S603 - our own interpreter, or the user's choice, and our arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal must not end it before the trainer
                env=program.environment(_without_ours(os.environ)),
            )
        except OSError as error:
            hint = f"run `{command[0]} --version` in a shell; {EXECUTABLE_VARIABLE} names another program"
            raise DaemonStartError(f"expected to start a daemon, got {error}", object=command[0], hint=hint) from None
    _children.append(child)
    started[address] = child
    _await_ready(child, command, socket_path, log_path)
    return program, log_path


def _cache_of(socket_path: Path) -> str:
    """Return the directory of a daemon's cache, which the daemon has written to a file beside its socket."""
    try:
        return socket_path.with_name(_CACHE_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "see the log"


def _page_of(socket_path: Path) -> str:
    """Return the address of the daemon's web page, with the token that opens it, as the end of a message."""
    try:
        return f". Web page: {socket_path.with_name(f'{socket_path.name}{_PAGE_SUFFIX}').read_text('utf-8').strip()}"
    except (OSError, ValueError):
        return ""


def _await_ready(child: subprocess.Popen[bytes], command: Sequence[str], socket_path: Path, log_path: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _try_hold(socket_path):
        code = child.poll()
        if code is not None or time.monotonic() > deadline_s:
            if code is None:
                child.kill()
                child.wait()
            how = f"exit code {code}" if code is not None else f"no answer within {START_TIMEOUT_S:.0f} s"
            raise DaemonStartError(
                f"expected `{' '.join(command)}` to be ready, got {killed_by(code) or how}:\n{_tail(log_path)}",
                object=str(log_path),
                hint=MEMORY_HINT if killed_by(code) else "the lines above are the end of its log",
            )
        time.sleep(0.02)


def _try_hold(socket_path: Path) -> bool:
    try:
        shm.hold(f"{socket_path}.arena")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path, *, makes_folder: bool = False) -> Iterator[None]:
    """Hold an exclusive lock file against other processes; the kernel frees the lock of a process that dies.

    A daemon that ends removes the folder of its lock file, and so does a sweep. The lock of a removed file is worth
    nothing, so the file at the path is locked again then.

    Raises:
        OSError: the folder is gone, or the file cannot be made in it.
    """
    while True:
        if makes_folder:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            if makes_folder and path.parent.parent.is_dir():
                continue
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                yield
                return
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sweep(base: Path) -> None:
    """Remove directories of ended ephemeral daemons: an hour old, with a socket that nothing serves."""
    for directory in base.iterdir():
        with contextlib.suppress(OSError):
            age_s = time.time() - directory.stat().st_mtime  # noqa: TID251 - a file's time is a date
            if age_s < STALE_AFTER_S or _serves(directory / "feedd.sock"):
                continue
            with _locked(directory / "lock"):
                shutil.rmtree(directory)


def _serves(socket_path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.settimeout(1.0)
        return unix.connect_ex(str(socket_path)) == 0


def _without_ours(env: Mapping[str, str]) -> dict[str, str]:
    # launcher variables do not concern the daemon, but it would read these variables as configuration
    return {name: value for name, value in env.items() if name not in _OURS}


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-_LOG_LINES:]) or "(empty log)"
