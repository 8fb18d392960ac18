"""What a dataset has open in one process: the channel and an idle session. Never shared with a fork."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from feedd_client import lifetime
from feedd_client.autostart import resolve_address
from feedd_client.transport import Endpoint, parse_address, probe, unreachable

if TYPE_CHECKING:
    from feedd_client.session import Session


class Runtime:
    """Belongs to the process that made it; ``pid`` tells a fork that it must make its own."""

    def __init__(self, address: str | None) -> None:
        self.pid = os.getpid()
        self._explicit = address
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._idle: Session | None = None
        lifetime.runtimes.add(self)

    def connect(self) -> Endpoint:
        """Return a channel to a daemon that accepts connections, starting one where that is ours to do.

        Raises:
            DaemonUnreachable: nobody accepts.
        """
        address = parse_address(resolve_address(self._explicit))
        reason = probe(address)
        if reason is not None:
            raise unreachable(address, reason)
        with self._lock:
            endpoint = self._endpoint
            if endpoint is None or endpoint.address != address:
                endpoint = self._endpoint = Endpoint(address)
            return endpoint

    def drop_channel(self) -> None:
        """Forget the channel, so that the next connect dials anew instead of waiting out a back-off."""
        with self._lock:
            self._endpoint = None

    def borrow(self, *, pinned: bool = False) -> Session | None:
        """Take the idle session for a pass, if it is of use: slots enough, which a device can read where ``pinned``."""
        with self._lock:
            session, self._idle = self._idle, None
        few = session is not None and session.slot_count - len(session.held) < min(2, session.slot_count)
        if session is not None and (few or (pinned and session.places)):
            session.close()
            return None
        return session

    def give_back(self, session: Session | None) -> None:
        """Keep a pass' session for the next pass; one is kept, others are closed."""
        if session is None:
            return
        with self._lock:
            surplus, self._idle = self._idle, session
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close what is open, in the process that opened it; idempotent."""
        if self.pid != os.getpid():
            return
        with self._lock:
            idle, self._idle = self._idle, None
            endpoint, self._endpoint = self._endpoint, None
        if idle is not None:
            idle.close()
        if endpoint is not None:
            endpoint.close()
