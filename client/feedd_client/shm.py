"""The arena: one memfd of slots, sent by the daemon over a Unix socket and mapped into this process.

A view of the mapping keeps it mapped, and the mapping keeps its connection to the daemon. When the last view or the
process dies, the connection ends and the daemon takes the slots back.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd_client.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ARENA_GREETING: Final = b"ARENA"
HOLD_GREETING: Final = b"HOLD!"
OWNER_GREETING: Final = b"OWNER"
TOKEN_BYTES: Final = 16
TICKET_BYTES: Final = 32
HANDSHAKE_TIMEOUT_S: Final = 10.0
_YES: Final = b"\x01"
_ENTRY: Final = np.dtype(np.uint64)  # one entry of /proc/self/pagemap per page
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))

_mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()
_holds: list[socket.socket] = []


class Mapping(mmap.mmap):
    """A mapped arena. Code never closes it: the mapping ends with its last view.

    An arena that other trainers read too is mapped privately: other processes never see what is written here, and
    ``refresh`` drops it.

    Attributes:
        private: whether the mapping is private. CUDA must not register it: that would copy every page permanently.
        lifeline: descriptor of the connection whose end tells the daemon that this process reads no slot any more;
            -1: it has ended. Not a socket object, because the garbage collector may close that too early.
        pid: process that mapped the arena.
        on_unmap: callbacks to run once before the memory goes away, only in the process that mapped it.
    """

    private: bool
    lifeline: int
    pid: int
    on_unmap: list[Callable[[], None]]

    def __del__(self) -> None:
        # Runs before mmap's own deallocation: memory registered with CUDA must be unregistered while it is mapped.
        callbacks, lifeline = getattr(self, "on_unmap", []), getattr(self, "lifeline", -1)
        if callbacks and self.pid == os.getpid() and not sys.is_finalizing():
            for callback in callbacks:
                callback()
        if lifeline >= 0 and not sys.is_finalizing():  # the end of the process closes it too
            os.close(lifeline)

    # identity, not content: mmap compares like bytes in some versions, and WeakSet needs a hash
    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def address(self) -> int:
        """Address of the mapping in this process."""
        return np.frombuffer(self, np.uint8, 1).ctypes.data

    def view(self, start: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return ``[start, start + size_bytes)`` as uint8 without copying; arrays made from it keep the mapping alive.

        Raises:
            ProtocolError: the range lies outside the arena.
        """
        if start < 0 or size_bytes < 0 or start + size_bytes > len(self):
            raise ProtocolError(f"expected a batch within {len(self)} arena bytes, got [{start}, {start + size_bytes})")
        return np.ndarray((size_bytes,), np.uint8, self, start)

    def refresh(self, start: int, size_bytes: int) -> None:
        """Drop this process's writes to ``[start, start + size_bytes)`` of a private mapping; ``start``: page-aligned.

        Checking for writes takes 0.3 ms for 38.5 MB. Without the check, every unwritten page would have to be looked up
        again.
        """
        if self.private and size_bytes and _written(self.address + start, size_bytes):
            pages = -(-size_bytes // mmap.PAGESIZE)
            self.madvise(mmap.MADV_DONTNEED, start, pages * mmap.PAGESIZE)


def _written(address: int, size_bytes: int) -> bool:
    """Return whether this process has written pages there; True if that cannot be determined."""
    first, last = address // mmap.PAGESIZE, -(-(address + size_bytes) // mmap.PAGESIZE)
    wanted_bytes = (last - first) * _ENTRY.itemsize
    try:
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        entries = np.frombuffer(os.pread(pagemap, wanted_bytes, first * _ENTRY.itemsize), _ENTRY)
    except OSError:
        return True
    finally:
        os.close(pagemap)
    there = entries & (_PRESENT | _SWAPPED) != 0
    return entries.nbytes < wanted_bytes or bool((there & (entries & _OF_FILE == 0)).any())


def attach(socket_path: str, token: bytes, size_bytes: int, *, private: bool = False) -> Mapping:
    """Fetch and map an arena; ``private``: other trainers read the arena too.

    Raises:
        OSError: the socket cannot be reached, or the daemon refused the token (PermissionError).
        ProtocolError: the received file is not an arena of that size.
    """
    if len(token) != TOKEN_BYTES or size_bytes <= 0:
        raise ProtocolError(f"expected a {TOKEN_BYTES}-byte token and a size, got {len(token)} and {size_bytes}")
    lifeline, fds = _greet(socket_path, ARENA_GREETING + token)
    try:
        mapping = _map(fds, size_bytes, socket_path, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    except BaseException:
        lifeline.close()
        raise
    finally:
        for fd in fds:
            os.close(fd)
    mapping.lifeline, mapping.pid, mapping.on_unmap, mapping.private = lifeline.detach(), os.getpid(), [], private
    _mappings.add(mapping)
    return mapping


def _map(fds: list[int], size_bytes: int, socket_path: str, flags: int) -> Mapping:
    if len(fds) != 1:
        raise ProtocolError(f"expected one file descriptor, got {len(fds)}", object=socket_path)
    got_bytes = os.fstat(fds[0]).st_size
    if got_bytes < size_bytes:  # reading past a file's end is SIGBUS, not an error
        raise ProtocolError(f"expected an arena of {size_bytes} bytes, got {got_bytes}", object=socket_path)
    # Writable: a host batch belongs to the trainer until it is returned, so in-place operations must work.
    return Mapping(fds[0], size_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)


class Ticket:
    """Names this process's user to the daemon, in calls that carry it; it ends with its connection.

    Attributes:
        value: the ticket; empty: the daemon issues none, because it is out of reach or refuses this user.
    """

    def __init__(self, socket_path: str, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> None:
        """Ask the daemon's arena socket for a ticket."""
        self.value = b""
        self._fd = -1  # a descriptor, because a socket object that is not closed warns
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix, contextlib.suppress(OSError):
            unix.settimeout(min(timeout_s, HANDSHAKE_TIMEOUT_S))
            unix.connect(socket_path)
            unix.sendall(OWNER_GREETING + bytes(TOKEN_BYTES))
            answer = unix.recv(1 + TICKET_BYTES, socket.MSG_WAITALL)
            if len(answer) == 1 + TICKET_BYTES:
                self.value, self._fd = answer[1:], unix.detach()

    def close(self) -> None:
        """End the ticket. Calling it again has no effect."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the end of the process closes it too
            self.close()


def hold(socket_path: str) -> None:
    """Keep an ephemeral daemon alive while this process lives.

    Raises:
        OSError: nothing accepts the connection, or the daemon is about to end.
    """
    lifeline, fds = _greet(socket_path, HOLD_GREETING + bytes(TOKEN_BYTES))
    for fd in fds:
        os.close(fd)
    _holds.append(lifeline)


def holds_alive() -> bool:
    """Return whether any lifeline of this process still has a daemon at its other end."""
    for lifeline in list(_holds):
        try:
            ended = lifeline.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return True
        except OSError:
            ended = True
        if ended:
            lifeline.close()
            _holds.remove(lifeline)
    return bool(_holds)


def _greet(socket_path: str, greeting: bytes) -> tuple[socket.socket, list[int]]:
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unix.settimeout(HANDSHAKE_TIMEOUT_S)
        unix.connect(socket_path)
        unix.sendall(greeting)
        return unix, _answer(unix)
    except BaseException:
        unix.close()
        raise


def _answer(unix: socket.socket) -> list[int]:
    answer, fds, _, _ = socket.recv_fds(unix, 1, 4, socket.MSG_CMSG_CLOEXEC)
    if answer != _YES:
        for fd in fds:
            os.close(fd)
        raise PermissionError(f"the daemon refused ({answer!r})")
    unix.settimeout(None)
    return fds


def _after_fork_in_child() -> None:
    # A child's copy of the connection would keep the daemon waiting after the parent died. This closes only the
    # child's descriptors; the parent's connection stays open.
    for mapping in list(_mappings):
        if mapping.lifeline >= 0:
            os.close(mapping.lifeline)
            mapping.lifeline = -1
    while _holds:
        with contextlib.suppress(OSError):
            _holds.pop().close()


os.register_at_fork(after_in_child=_after_fork_in_child)
