"""``feedd.ray`` without Ray: what the actor does for a scripted daemon, and errors."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Final

import pytest

import feedd.ray
from feedd.errors import FeeddError, PermissionDenied, ResourceExhausted, Unsupported
from feedd.ray import NodeDaemon, daemon_address, start_daemons, stop_daemons
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE: Final = "0123456789abcdef" * 3
_SCRIPTED: Final = """
import os, socket, sys
print("began", flush=True)
if {code}:
    sys.exit({code})
path = sys.argv[1] + ".arena"
if os.path.exists(path):
    os.unlink(path)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen()
    connection, _ = server.accept()
    assert connection.recv(64).startswith(b"HOLD!")
    connection.send(b"\\x01")
    connection.recv(1)
    os.unlink(path)
"""


@pytest.fixture
def home(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of a node."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_dir))
    return short_dir


@pytest.fixture
def code() -> int:
    """Exit code of the scripted daemon; 0: it serves."""
    return 0


@pytest.fixture
def actor(home: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Iterator[NodeDaemon]:
    """An actor with a scripted daemon; at the end it stops."""
    script = [sys.executable, "-S", "-c", _SCRIPTED.format(code=code)]
    monkeypatch.setattr(NodeDaemon, "_command", lambda self: [*script, str(self._socket)])
    place = NodeDaemon(NODE, {})
    yield place
    place.stop()
    assert not place._thread.is_alive()


def _new_process(actor: NodeDaemon, other: int = 0) -> int:
    deadline_s = time.monotonic() + PATIENT_S
    while (pid := actor.process_id()) in {0, other}:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return pid


def test_a_killed_daemon_is_followed_by_another_at_the_same_address(actor: NodeDaemon, home: Path) -> None:
    """The address depends on the node only. After stop() nothing runs, and nothing is started."""
    address = actor.address(20.0)
    assert address == f"unix://{home}/feedd-{os.getuid()}/ray-{NODE[:16]}/feedd.sock"
    first = _new_process(actor)
    os.kill(first, signal.SIGKILL)
    second = _new_process(actor, first)
    assert actor.address(20.0) == address
    actor.stop()
    assert actor.process_id() == 0
    deadline_s = time.monotonic() + PATIENT_S
    while os.path.exists(f"{address}.arena".removeprefix("unix://")):  # noqa: PTH110 - the daemon deletes it at its end
        assert time.monotonic() < deadline_s, second
        time.sleep(0.01)


@pytest.mark.parametrize("code", [2])
def test_a_wrong_configuration_is_not_tried_again(actor: NodeDaemon) -> None:
    """The actor answers with the end of the log, and starts no second daemon."""
    found = actor.address(20.0)
    assert isinstance(found, ResourceExhausted)
    assert "exit code 2:\nbegan" in str(found)
    assert actor._log.read_text() == "began\n"


@pytest.mark.parametrize("code", [1])
def test_who_waits_in_vain_learns_why(actor: NodeDaemon) -> None:
    """A daemon that keeps ending is tried again. Meanwhile a caller has a limit, and gets the log."""
    found = actor.address(0.05)
    assert isinstance(found, FeeddError)
    assert "no answer within 0 s" in str(found)


def test_a_directory_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns the directory could put a socket of their own there."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(PermissionDenied, match="expected a directory of user 4000000"):
        feedd.ray._directory(NODE)


@pytest.mark.parametrize("call", [start_daemons, daemon_address, stop_daemons])
def test_without_ray_the_extra_is_named(call: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function names the extra to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert callable(call)
    with pytest.raises(Unsupported, match=r"feedd\[ray\]"):
        call()
