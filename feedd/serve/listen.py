"""Addresses to listen on: parses and checks them, and claims Unix paths of dead daemons."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.errors import BadConfig
from feedd.serve.arena_socket import peer_credentials
from feedd.units import is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.protocols import Clock

ARENA_SUFFIX, ADMIN_SUFFIX = ".arena", ".admin"
_PATH_BYTES_MAX = 107  # size of sun_path without its final zero
_LOCK_TRIES = 50
_LOCK_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system, with the arena socket in the same folder."""

    path: Path

    @property
    def arena_path(self) -> Path:
        """Path of the arena socket."""
        return self.path.with_name(self.path.name + ARENA_SUFFIX)

    @property
    def admin_path(self) -> Path:
        """Path of the admin socket that belongs to this one by default."""
        return self.path.with_name(self.path.name + ADMIN_SUFFIX)

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Host and port of a TCP socket."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; a name other than localhost may resolve to any address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """Parse ``unix:///absolute/path`` or ``host:port``.

    Raises:
        BadConfig: the text is neither, or the path is too long for a socket.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or not path.strip("/"):
            raise BadConfig(f"expected unix:///absolute/path, got {text}", object=text, stage="serve")
        address = UnixAddress(Path("/" + path.lstrip("/")))
        size = len(os.fsencode(address.arena_path))
        if size > _PATH_BYTES_MAX:
            raise BadConfig(
                f"expected a socket path of at most {_PATH_BYTES_MAX - len(ARENA_SUFFIX)} bytes, "
                f"got {size - len(ARENA_SUFFIX)}",
                object=text,
                hint="listen on a shorter path",
                stage="serve",
            )
        return address
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadConfig(f"expected unix:///path or host:port, got {text!r}", object=text, stage="serve")
    return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def check_tcp_free(address: TcpAddress) -> None:
    """Check a TCP address before gRPC does, because gRPC does not give the reason of a failure.

    Raises:
        BadConfig: the address is in use, not this machine's, not permitted, or does not resolve.
    """
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in infos[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)  # two sockets may bind with SO_REUSEADDR, but only one may listen
    except OSError as error:
        raise BadConfig(
            f"cannot listen on {address}: {(error.strerror or str(error)).lower()}",
            object=str(address),
            hint="choose another port, or stop the process that uses it",
            stage="serve",
        ) from error


def remove_stale(path: Path) -> None:
    """Unlink the socket of a dead daemon.

    Raises:
        BadConfig: a daemon answers there, the file is no socket, or it may not be opened.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadConfig(
            f"expected a socket or nothing at {path}, got another kind of file", object=str(path), stage="serve"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            owner = "a busy daemon"  # its backlog is full
        except OSError as error:
            raise BadConfig(
                f"the socket at {path} cannot be used: {(error.strerror or '').lower()}",
                object=str(path),
                stage="serve",
            ) from error
        else:
            owner = f"pid {peer_credentials(probe)[0]}"
    raise BadConfig(
        f"{path} is in use by {owner}",
        object=str(path),
        hint="use that daemon, or listen on another address",
        stage="serve",
    )


def _open_folder(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadConfig(
            f"the folder {folder} for sockets cannot be used: {(error.strerror or '').lower()}",
            object=str(folder),
            stage="serve",
        ) from error


@asynccontextmanager
async def directory_lock(folder: Path, clock: Clock) -> AsyncIterator[None]:
    """Hold the folder's lock, so that of two daemons starting at once one sees the other's socket.

    A lock on a folder leaves no file behind and ends with its holder. It is held for milliseconds, so waiting means
    retrying.

    Raises:
        BadConfig: the folder cannot be created or opened, or its lock stays taken.
    """
    fd = _open_folder(folder)
    try:
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await clock.sleep_s(_LOCK_PAUSE_S)
        else:
            raise BadConfig(f"the lock of {folder} is held by another process", object=str(folder), stage="serve")
        yield
    finally:
        os.close(fd)


@contextmanager
def socket_umask(mode: int) -> Iterator[None]:
    """Create sockets with at most ``mode``, so that they are never open to others, not even for a moment."""
    former = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(former)


def listen_unix(path: Path, mode: int) -> socket.socket:
    """Return a listening, non-blocking Unix socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with socket_umask(mode):
            listener.bind(str(path))
        path.chmod(mode)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
