"""What a test may leave behind: nothing. Snapshots of threads, children and descriptors, and their difference."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from dataclasses import dataclass

_PATIENCE_S = 0.03  # most threads have ended by then
SETTLE_S = 15.0  # threads and sockets that were told to end need a moment, on a busy machine a long one

# Threads that belong to a library for the life of the process, or end by themselves when a peer hangs up.
_FOREIGN_THREADS = (
    "_poll_wrapper",  # grpc.aio's one poller
    "channel_spin",  # grpc channels of the synchronous API
    "process_request_thread",  # a request of an in-process HTTP server
    "asyncio_",  # a loop's default executor, ended by the loop
    # Pools of the process, bounded; their threads end when there was no work for a while.
    *(f"feedd-pool-{name}-" for name in ("cpu", "cache-disk", "local-files", "files", "files-to-disk", "dns", "test")),
    "pytest_timeout",
    "pytest-timeout",
    "QueueFeederThread",
)
# Children that serve the whole process.
_FORK_SERVER = "multiprocessing.forkserver"
_FOREIGN_CHILDREN = ("multiprocessing.resource_tracker", _FORK_SERVER)
_FOREIGN_FILES = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode:[io_uring]", "/dev/", "inotify")


@dataclass(frozen=True)
class Snapshot:
    """What the process held at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    forked: frozenset[int]  # by a server of forks among the children
    files: frozenset[tuple[int, str]]


# Twice a test: pathlib takes three times as long.
def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - see above
    except OSError:
        return []  # that process has just ended


def _bytes(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _children(of: int | str = "self") -> frozenset[int]:
    found: set[int] = set()
    tasks = f"/proc/{of}/task"
    for task in _names(tasks):
        try:
            found.update(map(int, _bytes(f"{tasks}/{task}/children").split()))
        except OSError:  # that thread has just ended
            continue
    return frozenset(found)


def _files() -> frozenset[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for name in _names("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))  # noqa: PTH115 - see above
        except OSError:  # the descriptor of the listing itself
            continue
    return frozenset(found)


def snapshot() -> Snapshot:
    """Take stock of this process."""
    children = _children()
    servers = [pid for pid in children if _FORK_SERVER in _command(pid)]
    return Snapshot(frozenset(threading.enumerate()), children, frozenset().union(*map(_children, servers)), _files())


def _is_socket_pair(descriptor: int) -> bool:
    """Tell self-pipes of event loops and of grpc's poller (no name on either end) from real connections."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return (
                copy.family == socket.AF_UNIX
                and copy.type == socket.SOCK_STREAM
                and not copy.getsockname()
                and not copy.getpeername()
            )
    except OSError:
        return False


def _own_file(descriptor: int, target: str) -> bool:
    if target.startswith(_FOREIGN_FILES):
        return False
    return not (target.startswith("socket:") and _is_socket_pair(descriptor))


def _command(pid: int) -> str:
    try:
        return _bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _leaks(before: Snapshot) -> list[str]:
    now = snapshot()
    found = [
        f"thread {thread.name}"
        for thread in now.threads - before.threads
        if thread.is_alive() and not any(name in thread.name for name in _FOREIGN_THREADS)
    ]
    for pid in now.children - before.children:
        command = _command(pid)
        if not any(name in command for name in _FOREIGN_CHILDREN):
            found.append(f"child process {pid} {command or '(not waited for)'}")
    found += [f"forked process {pid}" for pid in now.forked - before.forked]
    found += [f"descriptor {fd} {target}" for fd, target in now.files - before.files if _own_file(fd, target)]
    return sorted(found)


def leaks_since(before: Snapshot) -> list[str]:
    """Name what the process holds more than at ``before``, after giving it a moment to let go."""
    found = _leaks(before)
    if not found:
        return found
    started_s = time.monotonic()
    collected = False
    while (found := _leaks(before)) and time.monotonic() - started_s < SETTLE_S:
        if not collected and time.monotonic() - started_s > _PATIENCE_S:
            gc.collect()  # costs more than what most threads need to end
            collected = True
        time.sleep(0.005)
    return found
