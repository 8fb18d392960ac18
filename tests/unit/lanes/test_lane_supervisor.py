"""The supervisor, with small scripts as lanes: what it tells the service manager, and what follows when lanes end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from feedd.config import Config
from feedd.daemon.notify import Notifier
from feedd.errors import BadConfig
from feedd.lanes.lane_supervisor import LaneCommand, Supervisor
from feedd.observe.page_access import PageAccess
from tests.fakes.fetchers import until
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from feedd.lanes.lane import Lane

_SAYS = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
assert "WATCHDOG_USEC" not in os.environ
def say(*fields):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto("\\n".join(fields).encode(), os.environ["NOTIFY_SOCKET"])
"""
_SERVES = _SAYS + 'say("READY=1", "STATUS=ready"); say("STATUS=ready"); time.sleep(60)'
_STANDS_BY = _SAYS + 'say("READY=1", "STATUS=standby"); time.sleep(60)'
_DRAINS = (
    _SAYS
    + """
count = 0
def drain(*_):
    global count
    count += 1
    open(os.environ["NOTIFY_SOCKET"] + ".drains", "w").close()
    if count == 2:
        sys.exit(4)
signal.signal(signal.SIGTERM, drain)
say("READY=1", "STATUS=ready")
while True:
    time.sleep(60)
"""
)
_IMPORTS = 'import os, time; open(os.environ["NOTIFY_SOCKET"] + ".begun", "w").close(); time.sleep(60)'
_FAILS = "import sys; sys.exit(3)"


class _Node:
    """A supervisor that runs, and the service manager's end of its messages."""

    def __init__(self, folder: Path, scripts: Sequence[str], *, lanes: int = 2, status: str | None = None) -> None:
        self.folder = folder
        self.scripts = list(scripts)  # of the first, second, ... process that is started; the last one repeats
        self.config = Config.model_validate({"lanes": lanes, "status": status})
        self.said: list[str] = []
        self.ready: list[str | None] = []
        self.missing = False  # whether the program to start is missing
        self.failed_starts = 0
        self.options: dict[str, bool] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[int]]:
        """Run it; at the end it is stopped."""
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)) as manager:
            manager.bind(str(self.folder / "manager"))
            loop = asyncio.get_running_loop()
            loop.add_reader(manager, lambda: self.said.append(manager.recv(1000).decode()))
            variables = {"NOTIFY_SOCKET": str(self.folder / "manager"), "WATCHDOG_USEC": "60000000"}
            command = LaneCommand(self._arguments, dict(os.environ) | variables, self.folder, **self.options)
            notifier = Notifier(variables)
            access = PageAccess("token")
            self.supervisor = Supervisor(
                self.config, command, notifier, lambda _, page, __: self.ready.append(page), access
            )
            run = asyncio.create_task(self.supervisor.run())
            try:
                yield run
            finally:
                if not run.done():
                    os.kill(os.getpid(), signal.SIGTERM)
                with suppress(Exception):
                    await run
                loop.remove_reader(manager)

    def _arguments(self, _lane: Lane) -> list[str]:
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.failed_starts += self.missing
        return ["/nothing/here"] if self.missing else [sys.executable, "-S", "-c", script]

    def states(self) -> list[str]:
        """Return the fields that the service manager got, without signs of life."""
        return [field for message in self.said for field in message.split("\n") if field != "WATCHDOG=1"]


def _lanes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "-S" in command_of(child)]


async def test_the_service_manager_is_told_once(short_dir: Path) -> None:
    """READY=1 comes when the last lane serves, and not again; after STOPPING=1 comes nothing."""
    node = _Node(short_dir, [_SERVES])
    async with node.running() as run:
        await until(lambda: node.ready)
        assert node.ready == [None]
        os.kill(os.getpid(), signal.SIGTERM)
        assert await run == 0
        await until(lambda: "STOPPING=1" in node.states())
    states = node.states()
    assert [state for state in states if not state.startswith("STATUS=")] == ["READY=1", "STOPPING=1"]
    assert states[-1] == "STOPPING=1"
    assert "STATUS=2 of 2 lanes serve" in states
    assert "WATCHDOG=1" in node.said


async def test_lanes_in_standby_let_the_predecessor_end(short_dir: Path) -> None:
    """READY=1 is said in standby, as a daemon does, but the node is not ready."""
    node = _Node(short_dir, [_STANDS_BY])
    async with node.running():
        await until(lambda: "READY=1" in node.states())
        assert not node.ready


async def test_a_lane_that_dies_is_replaced(short_dir: Path) -> None:
    """The service manager sees fewer lanes for a while; the others go on."""
    node = _Node(short_dir, [_SERVES])
    async with node.running():
        await until(lambda: node.ready)
        before = _lanes()
        before[0].kill()
        await until(lambda: node.states().count("STATUS=2 of 2 lanes serve") == 2)
        assert "STATUS=1 of 2 lanes serve" in node.states()
        assert before[1] in _lanes()
        assert len(_lanes()) == 2
        assert sum(node.supervisor._status.restart_counts.values()) == 1
    assert node.states().count("READY=1") == 1


async def test_each_lane_is_a_process_group(short_dir: Path) -> None:
    """The terminal's Ctrl-C goes to the supervisor only, which passes one signal on."""
    node = _Node(short_dir, [_SERVES])
    async with node.running():
        await until(lambda: node.ready)
        assert [os.getpgid(lane.pid) for lane in _lanes()] == [lane.pid for lane in _lanes()]


async def test_a_second_signal_is_passed_on(short_dir: Path) -> None:
    """A lane that still drains after the first signal ends at the second; an error at the end is the node's."""
    node = _Node(short_dir, [_DRAINS])
    async with node.running() as run:
        await until(lambda: node.ready)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: "STOPPING=1" in node.states())
        await until(lambda: len([*short_dir.glob("*.drains")]) == 2)
        assert not run.done()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await run == 1


async def test_a_node_that_is_stopped_while_its_lanes_start_has_not_failed(short_dir: Path) -> None:
    """SIGTERM ends a lane that has no handler yet: as it was told to."""
    node = _Node(short_dir, [_IMPORTS])
    async with node.running() as run:
        await until(lambda: len([*short_dir.glob("*.begun")]) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await run == 0


async def test_a_lane_that_cannot_start_ends_the_node(short_dir: Path) -> None:
    """With its exit code."""
    node = _Node(short_dir, [_SERVES, _FAILS])
    async with node.running() as run:
        assert await run == 3


async def test_a_program_that_is_missing_at_the_start_ends_the_node(short_dir: Path) -> None:
    """With the exit code for errors of the system."""
    node = _Node(short_dir, [_SERVES])
    node.missing = True
    async with node.running() as run:
        assert await run == os.EX_OSERR


async def test_a_program_that_is_missing_later_is_tried_again(short_dir: Path) -> None:
    """While feedd is updated, or there are too many processes, the other lanes go on."""
    node = _Node(short_dir, [_SERVES])
    async with node.running():
        await until(lambda: node.ready)
        before = _lanes()
        node.missing = True
        before[0].kill()
        await until(lambda: len(_lanes()) == 1)
        await until(lambda: node.failed_starts)
        node.missing = False
        await until(lambda: len(_lanes()) == 2)
        assert before[1] in _lanes()


async def test_a_node_of_a_process_tree_ends_with_its_first_lane(short_dir: Path) -> None:
    """Trainers then start another node at the same addresses."""
    node = _Node(short_dir, [_SERVES])
    node.options = {"ends_with_first": True}
    async with node.running() as run:
        await until(lambda: node.ready)
        first, second = sorted(_lanes(), key=lambda lane: lane.environ()["NOTIFY_SOCKET"])
        second.kill()
        await until(lambda: node.states().count("STATUS=2 of 2 lanes serve") == 2)
        first.kill()
        assert await run == 1
    assert not _lanes()


async def test_a_successor_waits_for_the_port(short_dir: Path) -> None:
    """The predecessor's status page has the port until the predecessor has ended."""
    with socket.socket() as predecessor:
        predecessor.bind(("127.0.0.1", 0))
        predecessor.listen()
        address = f"127.0.0.1:{predecessor.getsockname()[1]}"
        with pytest.raises(BadConfig, match="port is taken"):
            async with _Node(short_dir, [_SERVES], status=address).running() as run:
                await run
        (short_dir / "manager").unlink()
        for name in ("0.notify", "1.notify"):
            (short_dir / name).unlink(missing_ok=True)
        node = _Node(short_dir, [_SERVES], status=address)
        node.options = {"standby": True}
        async with node.running():
            await until(lambda: "STATUS=2 of 2 lanes serve" in node.states())
            assert not node.ready
            predecessor.close()
            await until(lambda: node.ready)
            assert node.ready == [f"http://{address}/token/"]


async def test_a_port_that_stays_taken_ends_the_successor(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with one daemon; the lanes are stopped, not killed."""
    monkeypatch.setattr("feedd.daemon.standby._PORT_TRIES", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        node = _Node(short_dir, [_SERVES], status=f"127.0.0.1:{other.getsockname()[1]}")
        node.options = {"standby": True}
        with pytest.raises(BadConfig, match="port is taken"):
            async with node.running() as run:
                await run
    assert "STOPPING=1" in node.states()
    assert not node.ready


async def test_a_long_folder_is_named(short_dir: Path) -> None:
    """A Unix socket's path ends at 107 bytes; the error says what to set."""
    folder = short_dir / ("x" * 100)
    folder.mkdir()
    node = _Node(short_dir, [_SERVES])
    command = LaneCommand(node._arguments, {}, folder)
    with pytest.raises(BadConfig, match="TMPDIR"):
        await Supervisor(node.config, command, Notifier({}), None, PageAccess("token")).run()
