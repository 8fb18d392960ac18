"""Starts the lanes of a node, keeps them running, and stops them together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from feedd.clock import SystemClock
from feedd.daemon.node_page import NodePage
from feedd.daemon.signals import StopRequests, handled
from feedd.errors import BadConfig
from feedd.lanes.lane import Lane
from feedd.lanes.lane_process import SUPERVISOR_VARIABLE, status_socket
from feedd.lanes.node_status import NodeStatus, open_node_status
from feedd.lanes.restarts import Restart, Restarts, Stop

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from feedd.config import Config
    from feedd.daemon.notify import Notifier
    from feedd.observe.page_access import PageAccess

    OnReady = Callable[[Sequence[str], str | None, int], None]

STOP_S = 90.0
"""Longest time for a lane to end, besides the grace for open streams. Then it is killed."""
_CLEAN = {0, -signal.SIGTERM}  # of a lane that was told to end; SIGTERM itself ends one that still imports
_DATAGRAM_BYTES = 4096
_READY = "READY=1"
_OF_THIS_PROCESS = ("WATCHDOG_USEC", "WATCHDOG_PID")  # variables that no lane inherits: it has a watchdog of its own
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Keeping:
    """One lane: its present process, if any, and what it has said."""

    lane: Lane
    restarts: Restarts
    process: Process | None = None
    reported_ready: bool = False  # READY=1: the service manager may go on, also in standby
    serves: bool = False


@dataclass(frozen=True, slots=True)
class LaneCommand:
    """How lanes are started.

    Attributes:
        arguments: returns the command line of a lane.
        environment: variables of every lane.
        folder: folder of this process only, for the lanes' sockets.
        standby: whether lanes wait for another node's end, which may still have the port of the status page.
        ends_with_first: whether the node ends if the first lane fails: trainers that started it start another.
    """

    arguments: Callable[[Lane], Sequence[str]]
    environment: dict[str, str]
    folder: Path
    standby: bool = False
    ends_with_first: bool = False


class Supervisor:
    """Runs the lanes of a node. Decisions are in ``Restarts``."""

    def __init__(
        self, config: Config, command: LaneCommand, notifier: Notifier, on_ready: OnReady | None, access: PageAccess
    ) -> None:
        """Keep what the node needs.

        Args:
            config: the node's configuration.
            command: how to start a lane.
            notifier: tells the service manager.
            on_ready: called once all lanes serve, with their addresses, the page's address with its token, and the
                configured size of all caches.
            access: who may see the status pages.
        """
        self._config = config
        self._command = command
        self._notifier = notifier
        self._on_ready = on_ready
        self._requests = StopRequests()
        self._lanes = [
            _Keeping(Lane(index, config.lanes), Restarts(ends_node=command.ends_with_first and index == 0))
            for index in range(config.lanes)
        ]
        self._status = NodeStatus(tuple(status_socket(command.folder, one.lane) for one in self._lanes))
        open_page = None if config.status is None else partial(open_node_status, config.status, self._status, access)
        self._page = NodePage(open_page, access, standby=command.standby)
        self._all_serve = asyncio.Event()  # set once: all lanes have been ready at one time
        self._reported: set[str] = set()  # what the service manager knows
        self._code = 0
        self._page_error: BadConfig | None = None

    async def run(self) -> int:
        """Run until a signal, a failed start or the end of a lane without an error; return the exit code.

        Raises:
            BadConfig: the status page's address cannot be listened on.
        """
        with handled(self._requests):
            async with AsyncExitStack() as stack:
                stack.callback(lambda: _log.info("stopped", reason=self._requests.reason))
                await self._page.open_early(stack, self._config.listen)
                for one in self._lanes:
                    self._listen(stack, one)
                _log.info("starting lanes", lanes=len(self._lanes), pid=os.getpid())
                async with asyncio.TaskGroup() as group:
                    helpers = [self._stop_on_request(), self._beat(), self._announce(stack)]
                    tasks = [group.create_task(helper) for helper in helpers]
                    async with asyncio.TaskGroup() as lanes:
                        for one in self._lanes:
                            lanes.create_task(self._keep(one))
                    for task in tasks:
                        task.cancel()
        if self._page_error is not None:
            raise self._page_error
        return self._code

    # ------------------------------------------------------------------ the node

    async def _announce(self, stack: AsyncExitStack) -> None:
        """Say once that all lanes serve. Then the former node has ended, and its port is free."""
        await self._all_serve.wait()
        try:
            await self._page.open_late(stack, SystemClock(), self._config.listen)
        except BadConfig as error:
            self._page_error = error
            self._requests.ask("the status page cannot be served")
            return
        _log.info("ready", lanes=len(self._lanes), addresses=self._config.listen, status=self._page.bound)
        if self._on_ready is not None:
            self._on_ready(self._config.listen, self._page.url, self._config.cache.size)

    # ------------------------------------------------------------------ one lane

    async def _keep(self, one: _Keeping) -> None:
        """Start a lane, and again whenever it ends, until the node stops."""
        while not self._requests.drain.is_set():
            code, lived_s = await self._live(one)
            was_ready, one.reported_ready, one.serves = one.serves or one.reported_ready, False, False
            self._tell()
            if self._requests.drain.is_set():
                self._code = self._code or int(code not in _CLEAN)
                return
            verdict = one.restarts.ended(code, lived_s, was_ready=was_ready, node_ready=self._all_serve.is_set())
            match verdict:
                case Stop(exit_code, reason):
                    self._code = exit_code
                    self._requests.ask(reason)
                case Restart(pause_s):
                    self._status.restarted(one.lane.index)
                    _log.warning(
                        "a lane has ended and is started again", lane=one.lane.index, code=code, pause_s=pause_s
                    )
                    await self._pause(pause_s)

    async def _live(self, one: _Keeping) -> tuple[int, float]:
        """Run a lane's process to its end; return its exit code and its life in seconds."""
        folder, lane = self._command.folder, one.lane
        status_socket(folder, lane).unlink(missing_ok=True)
        environment = self._command.environment | {
            "NOTIFY_SOCKET": str(folder / f"{lane.index}.notify"),
            SUPERVISOR_VARIABLE: str(os.getpid()),
        }
        for name in _OF_THIS_PROCESS:
            environment.pop(name, None)
        began_s = time.monotonic()
        try:
            # In a group of its own, a lane does not get the terminal's Ctrl-C besides the supervisor's signal.
            one.process = await asyncio.create_subprocess_exec(
                *self._command.arguments(lane), env=environment, stdin=asyncio.subprocess.DEVNULL, process_group=0
            )
        except OSError as error:  # too many processes, or an update of feedd is under way
            _log.error("cannot start the process of a lane", lane=lane.index, error=str(error))
            return os.EX_OSERR, 0.0
        try:
            if self._requests.drain.is_set():  # asked while the process started
                one.process.terminate()
            code = await one.process.wait()
        finally:
            if one.process.returncode is None:  # this task was cancelled
                one.process.kill()
            one.process = None
        return code, time.monotonic() - began_s

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._requests.drain.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------------ what lanes say

    def _listen(self, stack: AsyncExitStack, one: _Keeping) -> None:
        """Receive a lane's messages to its service manager, which is this process."""
        loop = asyncio.get_running_loop()
        said = stack.enter_context(closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)))
        path = self._command.folder / f"{one.lane.index}.notify"
        try:
            said.bind(str(path))
        except OSError as error:
            raise BadConfig(
                f"cannot make a socket for a lane: {error}",
                object=str(path),
                hint="set TMPDIR to a folder with a short path, such as /tmp",
                stage="lanes",
            ) from error
        loop.add_reader(said, self._hear, said, one)
        stack.callback(loop.remove_reader, said)

    def _hear(self, said: socket.socket, one: _Keeping) -> None:
        fields = said.recv(_DATAGRAM_BYTES).decode("utf-8", "replace").split("\n")
        one.reported_ready |= _READY in fields
        one.serves |= "STATUS=ready" in fields
        self._tell()
        if all(each.serves for each in self._lanes):
            self._all_serve.set()

    def _tell(self) -> None:
        """Tell the service manager what is new, until the node stops."""
        if self._requests.drain.is_set():
            return
        serving_count = sum(one.serves for one in self._lanes)
        now = {f"STATUS={serving_count} of {len(self._lanes)} lanes serve"} | (self._reported & {_READY})
        if all(one.reported_ready for one in self._lanes):
            now.add(_READY)
        if now != self._reported:
            self._notifier.send(*sorted(now - self._reported))
            self._reported = now

    # ------------------------------------------------------------------ the end

    async def _stop_on_request(self) -> None:
        """Pass the first and the second signal on to all lanes, and kill those that do not end."""
        await self._requests.drain.wait()
        _log.info("stopping lanes", reason=self._requests.reason)
        self._notifier.send("STOPPING=1")
        self._terminate()
        try:
            async with asyncio.timeout(self._config.drain.grace + STOP_S):
                await self._requests.now.wait()
                self._terminate()
                await asyncio.Event().wait()
        except TimeoutError:
            for one in self._lanes:
                if one.process is not None:
                    _log.error("a lane does not end and is killed", lane=one.lane.index)
                    one.process.kill()

    def _terminate(self) -> None:
        for one in self._lanes:
            if one.process is not None:
                one.process.terminate()

    async def _beat(self) -> None:
        """Tell the service manager that this process lives. Each lane has a watchdog of its own."""
        period_s = self._notifier.watchdog_s
        while period_s is not None:
            self._notifier.send("WATCHDOG=1")
            await asyncio.sleep(period_s / 3)
