"""The service manager's socket: readiness, status text, watchdog. Does nothing without one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notifier:
    """Sends sd_notify datagrams; never blocks and never fails, because a missing service manager is no error.

    Attributes:
        watchdog_s: how often the manager wants a sign of life; None: never.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        name = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name  # "@" stands for an abstract socket
        self.watchdog_s = self._watchdog_s(env) if name else None

    @staticmethod
    def _watchdog_s(env: Mapping[str, str]) -> float | None:
        period_us, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
        if not period_us.isdecimal() or int(period_us) == 0 or (pid.isdecimal() and int(pid) != os.getpid()):
            return None
        return int(period_us) / 1e6

    def send(self, *fields: str) -> bool:
        """Send ``NAME=value`` fields in one datagram; False if there is no listener."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(fields).encode(), self._address)
        except OSError:
            return False
        return True
