"""What a decode worker gives up before it reads foreign bytes, and what the daemon hides from it.

Decoders are native libraries, and shards may come from the internet. A worker therefore gains no rights by running
programs, opens no socket, starts no program, looks into no other process, and opens no file but those of its Python
installation: shards come as descriptors. Each measure is the kernel's; a missing one is left out and reported.

Numbers and layouts: Linux's ``prctl.h``, ``seccomp.h``, ``filter.h``, ``landlock.h`` and its tables of system calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER: Final = 2
_ALLOW, _DENY, _UNKNOWN = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_KILL_PROCESS: Final = 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16  # offsets in seccomp_data; arguments are little-endian
_X32_BIT: Final = 0x40000000

_DENIED: Final[dict[str, tuple[int, int]]] = {
    # name: number on x86_64, number on aarch64; -1: does not exist there
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "socketpair": (53, 199),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept4": (288, 242),
    "fork": (57, -1),
    "vfork": (58, -1),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Landlock has no right for these. They reach files by path, or change who may open them.
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "truncate": (76, 45),
    "utimensat": (280, 88),
}
_THREADS_ONLY: Final = (56, 220)  # clone; with the flag for threads
_CLONE3: Final = (435, 435)  # its flags are in memory, which a filter cannot read; libraries fall back to clone
_OWN_PROCESS: Final = (234, 131)  # tgkill, which abort() uses
_OWN_LIMITS: Final = (302, 261)  # prlimit64 of process 0, which is this one
_OWN_CORES: Final = (203, 122)  # sched_setaffinity of thread 0, which is this one
_FCNTL: Final = (72, 25)
_SIGNAL_COMMANDS: Final = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: they make the kernel send any signal
_CLONE_THREAD: Final = 0x00010000
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_EVERY_FS_RIGHT: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights over files that a version of Landlock knows, by the version that added some."""
_BIND_TCP, _CONNECT_TCP, _NETWORK_SINCE = 1, 2, 4
_ABSTRACT_SOCKETS, _SIGNALS, _SCOPES_SINCE = 1, 2, 6
_READ_ALWAYS: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/null", "/dev/zero",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel", "/sys/devices/system",
    "/sys/fs/cgroup", "/proc/cgroups", "/proc/filesystems",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Which measures the kernel took.

    Attributes:
        seccomp: system calls for sockets, programs and other processes are refused.
        landlock: files outside of the Python installation cannot be opened; nothing can be written.
    """

    seccomp: bool
    landlock: bool


_libc = ctypes.CDLL(None, use_errno=True)


def hide_this_process() -> None:
    """Keep other processes of this user out of this process's memory, environment and descriptors; no core dumps."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def enter(readable: Sequence[str]) -> Sandbox:
    """Give up the rights of this process, for good. Call it when only one thread runs.

    Args:
        readable: folders and files to read besides the Python installation.
    """
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return Sandbox(seccomp=False, landlock=False)
    landlock = _enter_landlock([*_READ_ALWAYS, *_installation(), *readable])
    return Sandbox(_enter_seccomp(), landlock)


def supported() -> Sandbox:
    """Return which measures this kernel can take, without taking them."""
    actions = "/proc/sys/kernel/seccomp/actions_avail"
    return Sandbox(Path(actions).exists() and platform.machine() in _ARCHITECTURES, _landlock_version() > 0)


def _installation() -> set[str]:
    """Return the folders that modules are imported from."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path}
    for line in Path("/proc/self/maps").read_text().splitlines():
        library = Path(line[line.find("/") :]) if "/" in line else None
        if library is not None and ".so" in library.name:  # such as those of LD_LIBRARY_PATH
            found.add(str(library.parent))
    return {path for path in found if path.startswith("/")}


def _program(architecture: int, column: int) -> bytes:
    """Return a classic BPF program that refuses system calls with EPERM.

    Args:
        architecture: the processor's number in ``audit.h``.
        column: index of the processor in the tables of numbers.
    """
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_BIT),  # other numbers for the same calls
        (_RETURN, 0, 0, _DENY),
    ]
    for number in sorted({numbers[column] for numbers in _DENIED.values() if numbers[column] >= 0}):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN)]
    for number, test, value in (
        (_THREADS_ONLY[column], _ANY_BIT, _CLONE_THREAD),
        (_OWN_PROCESS[column], _EQUAL, os.getpid()),
        (_OWN_LIMITS[column], _EQUAL, 0),
        (_OWN_CORES[column], _EQUAL, 0),
    ):
        lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT_AT), (test, 0, 1, value)]
        lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
    lines += [(_EQUAL, 0, 1 + 2 * len(_SIGNAL_COMMANDS), _FCNTL[column]), (_LOAD, 0, 0, _ARGUMENT_AT + 8)]
    for command in _SIGNAL_COMMANDS:
        lines += [(_EQUAL, 0, 1, command), (_RETURN, 0, 0, _DENY)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _enter_seccomp() -> bool:
    found = _ARCHITECTURES.get(platform.machine())
    if found is None:
        return False
    architecture, column = found
    code = _program(architecture, column)
    lines = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(lines))
    return not _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0)


def _landlock_version() -> int:
    version: int = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(version, 0)


def _enter_landlock(readable: Iterable[str]) -> bool:
    version = _landlock_version()
    if not version:
        return False
    files = max(known for since, known in _EVERY_FS_RIGHT.items() if since <= version)
    network = _BIND_TCP | _CONNECT_TCP if version >= _NETWORK_SINCE else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if version >= _SCOPES_SINCE else 0
    asked = struct.pack("=QQQ", files, network, scopes)[: 24 if scopes else 16 if network else 8]
    ruleset = _libc.syscall(_LANDLOCK_CREATE, ctypes.c_char_p(asked), ctypes.c_size_t(len(asked)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        for path in readable:
            with suppress(OSError):  # what is not there need not be read
                _allow(ruleset, path)
        return not _libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str) -> None:
    """Allow to read a file, or all of a folder.

    A rule holds for an inode, and those of /proc are made anew after the kernel has dropped them for want of memory. So
    their descriptors stay open.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | (_READ_DIR if Path(path).is_dir() else 0)
        rule = struct.pack("=Qi", rights, fd)
        _libc.syscall(_LANDLOCK_ADD, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0))
    finally:
        if not path.startswith("/proc/"):
            os.close(fd)
