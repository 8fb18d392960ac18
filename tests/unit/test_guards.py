"""The guards themselves: they see what they are there to see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from tests import guards


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "SETTLE_S", 0.0)


def test_nothing_new_is_no_leak() -> None:
    """A process that made nothing has left nothing."""
    assert guards.leaks_since(guards.snapshot()) == []


def test_thread_is_seen() -> None:
    """A thread still running is named."""
    stop = threading.Event()
    before = guards.snapshot()
    thread = threading.Thread(target=stop.wait, name="left-over", daemon=True)
    thread.start()
    assert guards.leaks_since(before) == ["thread left-over"]
    stop.set()
    thread.join()


def test_child_is_seen() -> None:
    """A child process still running, or not waited for, is named."""
    before = guards.snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert any(f"child process {child.pid}" in leak for leak in guards.leaks_since(before))
    child.communicate(b"\n")
    assert guards.leaks_since(before) == []


_SERVER = """
import subprocess
for _ in range(2):
    input()
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    input()
    child.kill()
    child.wait()
    print("ended", flush=True)
"""


def test_forked_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that a server of forks made for us."""
    monkeypatch.setattr(guards, "_FORK_SERVER", "left-over-server")
    command = [sys.executable, "-c", _SERVER, "left-over-server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def ask() -> str:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write("\n")
            server.stdin.flush()
            return server.stdout.readline().strip()

        assert ask()
        assert ask() == "ended"
        before = guards.snapshot()
        assert guards.leaks_since(before) == []
        pid = ask()
        assert guards.leaks_since(before) == [f"forked process {pid}"]
        assert ask() == "ended"
        assert guards.leaks_since(before) == []


def test_descriptors_are_seen() -> None:
    """An open memfd, a listening socket and a seqpacket pair are named; the self-pipe of a loop is not."""
    before = guards.snapshot()
    memory = os.memfd_create("left-over")
    listener = socket.create_server(("127.0.0.1", 0))
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self_pipe = socket.socketpair()
    leaks = guards.leaks_since(before)
    os.close(memory)
    for each in (listener, *pair, *self_pipe):
        each.close()
    assert len(leaks) == 4
    assert guards.leaks_since(before) == []


def test_environment_is_clean() -> None:
    """No AWS or feedd setting of the machine is visible."""
    names = [name for name in os.environ if name.startswith(("AWS_", "FEEDD_"))]
    assert sorted(names) == ["AWS_CONFIG_FILE", "AWS_EC2_METADATA_DISABLED", "AWS_SHARED_CREDENTIALS_FILE"]


async def test_asynchronous_tests_run() -> None:
    """A plain coroutine function is a test."""
