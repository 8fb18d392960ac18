"""The scripted feed server's arena socket: hands out memfds, and sees lifelines end."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.feed_server import FakeFeed


class FakeArena:
    """Listens until stopped; counts on the server it belongs to."""

    def __init__(self, server: FakeFeed, path: str) -> None:
        self._server = server
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind(path)
        self._unix.listen(32)
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        """Hang up on everybody."""
        with contextlib.suppress(OSError):
            self._unix.shutdown(socket.SHUT_RDWR)
        self._unix.close()
        for one in self._connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._unix.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._attend, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _attend(self, connection: socket.socket) -> None:
        server = self._server
        with connection, contextlib.suppress(OSError):
            greeting = connection.recv(21, socket.MSG_WAITALL)
            holds = greeting[:5] == b"HOLD!"
            session = next((one for one in list(server.sessions.values()) if greeting == b"ARENA" + one.token), None)
            if session is not None:
                socket.send_fds(connection, [b"\x01"], [session.fd])
            else:
                connection.sendall(b"\x01" if holds else b"\x00")
            with server.lock:
                server.holds_open += holds
                server.lock.notify_all()
            with contextlib.suppress(OSError):
                connection.recv(1)
            with server.lock:
                server.holds_open -= holds
                if session is not None:
                    server.lifelines_ended += 1
                    session.leased.clear()
                    session.abandoned = True
                server.lock.notify_all()
