from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from feedd.clock import SystemClock
from feedd.errors import BadConfig
from feedd.serve.listen import (
    TcpAddress,
    UnixAddress,
    check_tcp_free,
    directory_lock,
    listen_unix,
    parse_address,
    remove_stale,
)
from tests.fakes.timeless import TimelessClock


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/feedd/feedd.sock", UnixAddress(Path("/run/feedd/feedd.sock"))),
        ("unix:/run/f.sock", UnixAddress(Path("/run/f.sock"))),
        ("127.0.0.1:7070", TcpAddress("127.0.0.1", 7070)),
        ("[::1]:0", TcpAddress("::1", 0)),
        ("node-7.cluster:65535", TcpAddress("node-7.cluster", 65535)),
    ],
)
def test_addresses_people_write(text: str, address: UnixAddress | TcpAddress) -> None:
    """Unix paths, IPv4, bracketed IPv6 and names are read; what is printed reads back the same."""
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "7070", ":7070", "host:", "host:x", "host:70000", "unix:", "unix://", "unix:///", "unix:relative", "host:٣"],
)
def test_what_is_no_address(text: str) -> None:
    """Anything else is bad configuration that quotes the text."""
    with pytest.raises(BadConfig, match="expected unix:///"):
        parse_address(text)


def test_a_path_too_long_for_a_socket() -> None:
    """The limit counts the arena socket's suffix, and both numbers are said."""
    with pytest.raises(BadConfig, match="at most 101 bytes, got 120"):
        parse_address("unix:///" + "x" * 119)
    assert parse_address("unix:///" + "x" * 100) == UnixAddress(Path("/" + "x" * 100))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("node", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    """Only addresses no other machine can reach count as loopback; an unknown name does not."""
    assert TcpAddress(host, 1).is_loopback is loopback


def test_a_socket_of_a_dead_daemon_is_removed(short_dir: Path) -> None:
    """Nobody answers there: the path is free."""
    path = short_dir / "s"
    listen_unix(path, 0o600).close()
    assert path.exists()
    remove_stale(path)
    assert not path.exists()
    remove_stale(path)


def test_a_live_socket_is_left_alone(short_dir: Path) -> None:
    """Somebody answers there: refused, with the pid."""
    path = short_dir / "s"
    with listen_unix(path, 0o600), pytest.raises(BadConfig, match=f"in use by pid {os.getpid()}"):
        remove_stale(path)
    assert path.exists()


def test_another_kind_of_file_is_left_alone(short_dir: Path) -> None:
    """A file somebody put there is not ours to remove."""
    path = short_dir / "s"
    path.write_text("precious")
    with pytest.raises(BadConfig, match="another kind of file"):
        remove_stale(path)
    assert path.read_text() == "precious"


def test_sockets_are_never_open_to_others(short_dir: Path) -> None:
    """The mode is as asked for whatever the umask, and the umask is as before."""
    before = os.umask(0)
    try:
        with listen_unix(short_dir / "a", 0o600):
            assert stat.S_IMODE((short_dir / "a").stat().st_mode) == 0o600
        with listen_unix(short_dir / "b", 0o660):
            assert stat.S_IMODE((short_dir / "b").stat().st_mode) == 0o660
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_port_in_use_is_named() -> None:
    """The address and the reason are said."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(BadConfig, match=f"127.0.0.1:{port}: address already in use"):
            check_tcp_free(TcpAddress("127.0.0.1", port))


def test_an_address_that_is_not_ours_is_named() -> None:
    """An address of another machine cannot be listened on."""
    with pytest.raises(BadConfig, match=r"192\.0\.2\.1:7070"):
        check_tcp_free(TcpAddress("192.0.2.1", 7070))


async def test_two_starting_daemons_take_turns(short_dir: Path) -> None:
    """While one holds the folder's lock, another waits; it leaves no file behind."""
    order: list[str] = []

    async def start(name: str) -> None:
        async with directory_lock(short_dir / "made", SystemClock()):
            order.append(f"{name} in")
            await asyncio.sleep(0.01)
            order.append(f"{name} out")

    await asyncio.gather(start("a"), start("b"))
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])
    assert not list((short_dir / "made").iterdir())


async def test_a_lock_that_is_never_free_is_an_error(short_dir: Path) -> None:
    """Waiting for the folder is bounded."""
    clock = TimelessClock()
    async with directory_lock(short_dir, clock):
        with pytest.raises(BadConfig, match="held by another process"):
            async with directory_lock(short_dir, clock):
                pass
    assert clock.sleeps_s


async def test_a_folder_that_cannot_be_made(short_dir: Path) -> None:
    """A file in the way of the folder is bad configuration, not a traceback."""
    (short_dir / "file").write_text("")
    with pytest.raises(BadConfig, match="for sockets cannot be used"):
        async with directory_lock(short_dir / "file" / "sub", SystemClock()):
            pass
