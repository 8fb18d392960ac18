"""Sockets of two daemons at one path: a rename replaces them, and neither daemon removes those of the other."""

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


def test_a_successor_replaces_its_predecessors_socket_only(short_dir: Path, stack: ExitStack) -> None:
    """Told the inode it may; that of a stranger is in use. The predecessor's end leaves the successor's socket."""
    path = short_dir / "feedd.sock"
    old, old_listener = _bound(stack, path)
    old.publish()
    assert [one.name for one in short_dir.iterdir()] == ["feedd.sock"]
    new, new_listener = _bound(stack, path)
    with pytest.raises(BadConfig, match="in use"):
        new.publish()
    assert _reached(path, old_listener)
    new.publish(old.inodes)
    new.publish()
    assert _reached(path, new_listener)
    old.remove()
    assert _reached(path, new_listener)
    new.remove()
    assert not list(short_dir.iterdir())


def test_a_predecessor_takes_its_name_back(short_dir: Path, stack: ExitStack) -> None:
    """Whether its successor had replaced the socket or not, one name is left."""
    path = short_dir / "feedd.sock"
    old, listener = _bound(stack, path)
    old.publish()
    for replaced in (False, True):
        old.keep_links()
        if replaced:
            new, _ = _bound(stack, path)
            new.publish(old.inodes)
        old.restore()
        assert [one.name for one in short_dir.iterdir()] == ["feedd.sock"]
        assert _reached(path, listener)
    old.keep_links()
    old.remove()
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
