"""Queries about a dataset before any pass: opens a session, reads the answer and closes the session."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from torch.utils.data import get_worker_info

from feedd_client.errors import Draining, ResourceError
from feedd_client.lifetime import StopSign
from feedd_client.opener import Consumer, Opener, ToDaemon
from feedd_client.state import lanes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from feedd_client.options import FeedOptions
    from feedd_client.passes import Ranks
    from feedd_client.runtime import Runtime
    from feedd_client.session import Session
    from feedd_client.topology import Topology


class Plan(NamedTuple):
    """What a dataset knows of its plan: empty before its first pass."""

    fingerprint: bytes
    topology_state: Mapping[str, int]


class Asker:
    """Opens short sessions to query the daemon. One object per dataset and process."""

    def __init__(self, options: FeedOptions, ranks: Ranks, runtime: Runtime) -> None:
        self._options, self._ranks, self._runtime = options, ranks, runtime
        self._classes: dict[tuple[bytes, str], list[str]] = {}  # by the dataset's fingerprint and the field

    def steps(self, plan: Plan, epoch: int) -> int | None:
        """Return the steps of this rank in an epoch; None: unknown."""
        with self._session(plan, epoch) as (session, topology):
            granted = session.granted
            joined = granted.uneven == "join" and topology.world_size > 1  # steps then depend on the other ranks
            return granted.steps if granted.HasField("steps") and not joined else None

    def classes(self, field: str, plan: Plan, epoch: int) -> list[str]:
        """Return the names of a field's classes."""
        key = (plan.fingerprint, field)
        if key not in self._classes:
            with self._session(plan, epoch) as (session, _):
                timeout_s = self._options.open_timeout_s
                self._classes[key] = session.endpoint.classes(session.granted.session_id, field, timeout_s)
        return list(self._classes[key])

    @contextmanager
    def _session(self, plan: Plan, epoch: int) -> Iterator[tuple[Session, Topology]]:
        ranks, runtime, info = self._ranks, self._runtime, get_worker_info()
        topology = ranks.topology(in_worker=info is not None)
        uneven = ranks.uneven(topology, in_worker=False) if self._options.uneven != "join" else "join"
        to_daemon = ToDaemon(runtime.connect, runtime.drop_channel)
        lane_count = lanes_of(plan.topology_state, topology, self._options)
        opener = Opener(self._options, Consumer(topology), to_daemon, uneven, lane_count=lane_count)
        opener.expect = plan.fingerprint
        retry = (Draining, ResourceError)
        session = opener.open(epoch, self._options.open_timeout_s, retry, StopSign())
        try:
            yield session, topology
        finally:
            session.close()
