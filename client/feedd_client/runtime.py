"""A dataset's open resources in one process: the channel and an idle session. Never shared with a fork."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from feedd_client import lifetime
from feedd_client.autostart import resolve_address
from feedd_client.errors import BadOptionError, DaemonUnreachable, Draining
from feedd_client.transport import CONNECT_TIMEOUT_S, Endpoint, lane_address, parse_address, probe, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.feeder import Remains
    from feedd_client.leases import PrivateCopies
    from feedd_client.session import Session
    from feedd_client.transport import Address


class Runtime:
    """Belongs to the process that made it; a fork sees another ``pid`` and makes its own.

    The lock guards assignments only: they create no objects, so no finalizer runs while it is held.

    Attributes:
        copies: private copies that the trainer holds in addition to the slots of its session.
        left: remains of passes that were dropped before their end; the next call settles them.
    """

    def __init__(self, address: str | None, copies: PrivateCopies) -> None:
        self.pid = os.getpid()
        self.left: deque[Remains] = deque()
        self._explicit = address
        self.copies = copies
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._idle: Session | None = None
        self._daemon_count: int | None = None
        lifetime.runtimes.add(self)

    def connect(self, daemon_of: Callable[[int], int]) -> Endpoint:
        """Return a channel to a daemon that accepts connections; start an ephemeral daemon if none is configured.

        Args:
            daemon_of: returns, for the number of daemons of the node, the number of the wanted one.

        Raises:
            DaemonUnreachable: nothing accepts connections.
            Draining: the wanted daemon accepts none, but another daemon of the node does.
            FeedError: no daemon says how many there are.
        """
        node = parse_address(resolve_address(self._explicit))
        if self._daemon_count is not None:
            address = lane_address(node, daemon_of(self._daemon_count))
            if address == node or probe(address) is None:
                return self._endpoint_at(address)
        asked = self._endpoint_at(_answering(node))
        self._daemon_count = asked.daemon_count(CONNECT_TIMEOUT_S)
        address = lane_address(node, daemon_of(self._daemon_count))
        if address == asked.address:
            return asked
        self.drop_channel()
        asked.close()
        reason = probe(address)
        if reason is not None:  # a refused connection: the supervisor is starting that daemon again
            kind = Draining if isinstance(reason, ConnectionRefusedError) else DaemonUnreachable
            raise kind(
                f"expected each of the node's {self._daemon_count} daemons to answer, got {reason}",
                object=address.text,
                hint="clients must reach the addresses of all lanes: mount the socket's folder, or open all ports",
            )
        return self._endpoint_at(address)

    def _endpoint_at(self, address: Address) -> Endpoint:
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
        """Forget the channel, so that the next connect dials at once instead of waiting for gRPC's back-off."""
        with self._lock:
            self._endpoint = None

    def borrow(self, lane_count: int | None = None, *, pinned: bool = False) -> Session | None:
        """Take the idle session for a pass, if it has enough free slots.

        ``lane_count``: lanes of the pass's plan; None: any. ``pinned``: slots that a device can read.

        If the trainer holds nearly all of its slots, the session is closed and its held batches count as copies.
        """
        self._settle()
        with self._lock:
            session = self._idle
            self._idle = None
        if session is None:
            return None
        session.collect()
        other_plan = lane_count is not None and session.lane_count != lane_count
        if other_plan or session.free_count < min(2, session.slot_count) or (pinned and session.shared_slot_count):
            for payload in session.leased.payloads():
                self.copies.count(payload)
            session.close()
            return None
        return session

    def give_back(self, session: Session | None) -> None:
        """Keep a session for the next pass; only one is kept, so another idle session is closed."""
        if session is None:
            return
        with self._lock:
            surplus = self._idle
            self._idle = session
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close session and channel in the process that opened them. Calling it again has no effect."""
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


def _answering(node: Address) -> Address:
    """Return the address of a daemon that knows how many the node has: of the second while the first starts again."""
    if node.uds_path is not None and isinstance(probe(node), ConnectionRefusedError):
        try:
            second = lane_address(node, 1)
        except BadOptionError:  # the path has no room for a suffix, so the daemon is alone
            return node
        if probe(second) is None:
            return second
    return node
