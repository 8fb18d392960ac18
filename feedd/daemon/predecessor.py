"""Hands a daemon's sessions over to the successor that stands by; see ``handover_messages``."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from typing import TYPE_CHECKING, Final

import structlog

from feedd.daemon.handover_machine import HandoverStage, HandoverStep, PredecessorMachine
from feedd.daemon.handover_messages import (
    SOCKET_NAME,
    VERSION,
    HandoverBroken,
    HandoverLink,
    HandoverMessage,
    session_messages,
    socket_in,
)
from feedd.flow.pools import CACHE_DISK
from feedd.serve.preopened import client_states, end_at_pauses, resume

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.daemon.signals import StopRequests
    from feedd.serve.grpc_server import FeedServer

PAUSE_S: Final = 0.3
"""Longest time for the streams to reach their pauses after ``go``."""
_HELLO_S: Final = 5.0
_UNLINK_S: Final = 1.0  # a disk may hang
_ACCEPT_PAUSE_S: Final = 0.1  # after accept failed for lack of file descriptors; an immediate retry cannot help
_log = structlog.get_logger(__name__)


class Predecessor:
    """Listens for a successor, and hands over to it."""

    def __init__(self, directory: Path, server: FeedServer, requests: StopRequests) -> None:
        """Store the dependencies.

        Args:
            directory: the cache directory, in which the socket lies.
            server: the server whose sessions are handed over.
            requests: asked to drain when the successor serves.
        """
        self._directory = directory
        self._server = server
        self._requests = requests
        self._machine = PredecessorMachine()
        self._link: HandoverLink | None = None
        self._patience: asyncio.Timeout | None = None
        self._parted = asyncio.Event()  # the conversation with the successor has ended
        self._inode = 0

    @property
    def is_over(self) -> bool:
        """Whether a successor serves."""
        return self._machine.stage is HandoverStage.OVER

    async def serve(self) -> None:
        """Accept successors until cancelled."""
        try:
            listener = await CACHE_DISK.run(self._listen)
        except OSError as error:
            # The successor will warn, and the cache has if its directory cannot be written.
            _log.info("no successor can take over from this daemon while it serves", error=str(error))
            return
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        conn, _ = await asyncio.get_running_loop().sock_accept(listener)
                    except OSError as error:
                        _log.warning("a successor could not be accepted", error=str(error))
                        await asyncio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    group.create_task(self._attend(HandoverLink(conn)))
        finally:
            listener.close()
            with contextlib.suppress(TimeoutError):  # the next daemon removes it as well
                async with asyncio.timeout(_UNLINK_S):
                    await CACHE_DISK.run(self._unlink)

    async def end(self) -> None:
        """Hand over to the successor that stands by, if there is one; return when this daemon may drain."""
        if self.is_over:
            return
        link, step = self._link, self._machine.end_requested()
        if step is HandoverStep.END or link is None:
            return
        try:
            await self._carry_out(step, link)
        except HandoverBroken:
            return  # ``_attend`` notices as well
        await self._parted.wait()

    # ------------------------------------------------------------------ inside

    def _listen(self) -> socket.socket:
        """Listen at a socket that was never open to others: it is made in a folder that is not. Blocks."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        folder, path = self._directory / f"{SOCKET_NAME}.new", self._directory / SOCKET_NAME
        try:
            shutil.rmtree(
                folder, ignore_errors=True
            )  # of a daemon that was killed, because this one owns the directory
            folder.mkdir(mode=0o700)
            with socket_in(folder) as address:
                listener.bind(address)
            made = folder / SOCKET_NAME
            made.chmod(0o600)
            self._inode = made.stat().st_ino
            listener.listen(4)
            made.rename(path)
            folder.rmdir()
        except BaseException:
            listener.close()
            raise
        return listener

    def _unlink(self) -> None:
        """Remove the socket, unless a successor has put its own there. Blocks."""
        path = self._directory / SOCKET_NAME
        with contextlib.suppress(OSError):
            if path.stat().st_ino == self._inode:
                path.unlink()

    async def _attend(self, link: HandoverLink) -> None:
        """Serve one connection until it ends."""
        try:
            link.check_peer()
            async with asyncio.timeout(_HELLO_S):
                hello = await link.receive()
            if hello.kind == "hello" and self._machine.hello(hello.version) is HandoverStep.TELL:
                await self._converse(link, hello.daemon_id)
            else:
                taken = self._machine.stage is not HandoverStage.ALONE
                await link.send(HandoverMessage("refused", reason=_refusal(hello, taken=taken), taken=taken))
        except (HandoverBroken, TimeoutError) as error:
            _log.warning("a connection for a handover was refused", error=str(error) or "no hello came")
        except Exception:  # noqa: BLE001 - a defect must not end the daemon, which serves
            _log.exception("a handover ended by an error")
        finally:
            link.close()

    async def _converse(self, link: HandoverLink, successor: str) -> None:
        """Talk to the successor until it serves, or is gone."""
        _log.info("a successor stands by", successor=successor)
        self._link, machine = link, self._machine
        self._parted.clear()
        events = {
            "prepared": machine.prepared,
            "takeover": machine.takeover_requested,
            "ready": machine.ready,
            "go": machine.go,
        }
        try:
            states = client_states(self._server.sessions.all)
            await link.send(HandoverMessage("sessions", sessions=session_messages(states)))
            while machine.stage not in {HandoverStage.OVER, HandoverStage.ALONE}:
                message = await self._next(link)
                event = machine.late if message is None else events.get(message.kind, machine.lost)
                await self._carry_out(event(), link)
        except HandoverBroken as error:
            _log.info("the successor is gone", reason=error.message)
            await self._carry_out(machine.lost(), link)
        finally:
            self._link = None
            self._parted.set()

    async def _next(self, link: HandoverLink) -> HandoverMessage | None:
        """Return the successor's next message; None: it is late."""
        try:
            async with asyncio.timeout(None) as self._patience:
                self._limit_wait()
                return await link.receive()
        except TimeoutError:
            return None
        finally:
            self._patience = None

    def _limit_wait(self) -> None:
        """Wait for the successor's next message no longer than the machine says."""
        if self._patience is not None and (patience_s := self._machine.patience_s) is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + patience_s)

    async def _carry_out(self, step: HandoverStep, link: HandoverLink) -> None:
        sessions = self._server.sessions.all
        self._limit_wait()
        if step is HandoverStep.SWITCH:
            states = session_messages(client_states(sessions, pausing=True))
            self._server.sockets.keep_links()
            await link.send(HandoverMessage("switch", sessions=states, sockets=tuple(self._server.sockets.inodes)))
        elif step is HandoverStep.PUBLISH:
            await link.send(HandoverMessage("publish"))
        elif step is HandoverStep.RESUME:
            _log.warning("the successor did not take over: this daemon serves on")
            self._server.sockets.restore()
            resume(sessions)
        elif step is HandoverStep.END and self.is_over:
            end_at_pauses(sessions)
            self._requests.ask("handover")


def _refusal(hello: HandoverMessage, *, taken: bool) -> str:
    if hello.version != VERSION:
        return f"expected version {VERSION} of the handover, got {hello.version}"
    return "another successor stands by already" if taken else "this daemon ends now"
