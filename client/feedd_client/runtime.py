"""What a dataset has open in one process: the channel and an idle session. Never shared with a fork."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from feedd_client import lifetime
from feedd_client.autostart import resolve_address
from feedd_client.transport import Endpoint, parse_address, probe, unreachable

if TYPE_CHECKING:
    from feedd_client.feeder import Remains
    from feedd_client.leases import HeldCopies
    from feedd_client.session import Session


class Runtime:
    """Belongs to the process that made it; ``pid`` tells a fork that it must make its own.

    Under its lock there are only assignments: they make no objects, so no finalizer runs there.

    Attributes:
        copies: what the trainer holds beside the slots of its session.
        left: what passes left behind that were dropped without an end; settled by the next call.
    """

    def __init__(self, address: str | None, copies: HeldCopies) -> None:
        self.pid = os.getpid()
        self.left: deque[Remains] = deque()
        self._explicit = address
        self.copies = copies
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
        endpoint = self._endpoint
        if endpoint is None or endpoint.address != address:
            endpoint = Endpoint(address)
            with self._lock:
                self._endpoint = endpoint
        return endpoint

    def drop_channel(self) -> None:
        """Forget the channel, so that the next connect dials anew instead of waiting out a back-off."""
        with self._lock:
            self._endpoint = None

    def borrow(self, *, pinned: bool = False) -> Session | None:
        """Take the idle session for a pass, if it is of use: slots enough, which a device can read where ``pinned``.

        Where the trainer holds nearly all of its slots, the next session has new ones; what it holds counts as copies.
        """
        self._settle()
        with self._lock:
            session = self._idle
            self._idle = None
        if session is None:
            return None
        session.collect()
        if session.free_count < min(2, session.slot_count) or (pinned and session.places):
            for payload in session.lent.payloads():
                self.copies.count(payload)
            session.close()
            return None
        return session

    def give_back(self, session: Session | None) -> None:
        """Keep a pass' session for the next pass; one is kept, others are closed."""
        if session is None:
            return
        with self._lock:
            surplus = self._idle
            self._idle = session
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close what is open, in the process that opened it; idempotent."""
        if self.pid != os.getpid():
            return
        self._settle()
        with self._lock:
            idle = self._idle
            endpoint = self._endpoint
            self._idle = self._endpoint = None
        if idle is not None:
            idle.close()
        if endpoint is not None:
            endpoint.close()

    def _settle(self) -> None:
        while self.left:
            self.give_back(self.left.popleft().settle())
