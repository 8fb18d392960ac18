"""The service manager's socket: right datagrams to a path and to an abstract name, silence where there is none."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from feedd.daemon.notify import Notifier
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """A datagram socket with an address yet to be chosen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(PATIENT_S)
        yield receiver


def test_fields_arrive_in_one_datagram(manager: socket.socket, short_dir: Path) -> None:
    """Fields are sent as lines of one datagram to the path named."""
    manager.bind(str(short_dir / "n"))
    assert Notifier({"NOTIFY_SOCKET": str(short_dir / "n")}).send("READY=1", "STATUS=ready")
    assert manager.recv(100) == b"READY=1\nSTATUS=ready"


def test_abstract_sockets_work(manager: socket.socket) -> None:
    """A name that starts with an at sign is an abstract address."""
    name = f"feedd-test-{os.getpid()}"
    manager.bind(f"\0{name}")
    assert Notifier({"NOTIFY_SOCKET": f"@{name}"}).send("READY=1")
    assert manager.recv(100) == b"READY=1"


def test_without_a_manager_nothing_happens(short_dir: Path) -> None:
    """No variable, or nobody at the address: False, and no error."""
    assert not Notifier({}).send("READY=1")
    assert not Notifier({"NOTIFY_SOCKET": str(short_dir / "none")}).send("READY=1")


@pytest.mark.parametrize(
    ("env", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "ours"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_period_is_read(env: dict[str, str], watchdog_s: float | None) -> None:
    """The period counts only where it is a number and meant for this process."""
    ours = {name: str(os.getpid()) for name, value in env.items() if value == "ours"}
    assert Notifier({"NOTIFY_SOCKET": "/nowhere", **env, **ours}).watchdog_s == watchdog_s
