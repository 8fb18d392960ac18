"""Sockets of two daemons at one path: neither daemon removes those of the other."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadConfig
from feedd.serve.socket_files import SocketFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as opened:
        yield opened


def _bound(stack: ExitStack, path: Path) -> tuple[SocketFiles, socket.socket]:
    files = SocketFiles()
    listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    private = files.private_path(path)
    listener.bind(str(private))
    listener.listen()
    files.add(private, path)
    return files, listener


def _reached(path: Path, listener: socket.socket) -> bool:
    """Whether who connects at ``path`` reaches ``listener``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        client.connect(str(path))
        listener.settimeout(0.2)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return False
        return True


def test_a_socket_in_use_is_not_replaced(short_dir: Path, stack: ExitStack) -> None:
    """A daemon refuses the path of another one; if the file was removed, the end of the first leaves the second's."""
    path = short_dir / "feedd.sock"
    old, old_listener = _bound(stack, path)
    old.publish()
    assert [one.name for one in short_dir.iterdir()] == ["feedd.sock"]
    new, new_listener = _bound(stack, path)
    with pytest.raises(BadConfig, match="in use"):
        new.publish()
    assert _reached(path, old_listener)
    path.unlink()
    new.publish()
    new.publish()
    assert _reached(path, new_listener)
    old.remove()
    assert _reached(path, new_listener)
    new.remove()
    assert not list(short_dir.iterdir())


def test_the_socket_of_a_dead_daemon_is_replaced(short_dir: Path, stack: ExitStack) -> None:
    """Nobody listens there any more."""
    path = short_dir / "feedd.sock"
    _, listener = _bound(stack, path)
    next(short_dir.iterdir()).rename(path)
    listener.close()
    files, second = _bound(stack, path)
    files.publish()
    assert _reached(path, second)
