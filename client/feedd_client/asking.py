"""Queries about a dataset before any pass: opens a session, reads the answer and closes the session."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.utils.data import get_worker_info

from feedd_client.errors import Draining, ResourceError
from feedd_client.lifetime import StopSign
from feedd_client.opener import Consumer, Opener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd_client.options import FeedOptions
    from feedd_client.passes import Ranks
    from feedd_client.runtime import Runtime
    from feedd_client.session import Session
    from feedd_client.topology import Topology


class Asker:
    """Opens short sessions to query the daemon. One object per dataset and process."""

    def __init__(self, options: FeedOptions, ranks: Ranks, runtime: Runtime) -> None:
        self._options, self._ranks, self._runtime = options, ranks, runtime
        self._classes: dict[tuple[bytes, str], list[str]] = {}  # by the dataset's fingerprint and the field

    def steps(self, fingerprint: bytes, epoch: int) -> int | None:
        """Return the steps of this rank in an epoch; None: unknown."""
        with self._session(fingerprint, epoch) as (session, topology):
            granted = session.granted
            joined = granted.uneven == "join" and topology.world_size > 1  # steps then depend on the other ranks
            return granted.steps if granted.HasField("steps") and not joined else None

    def classes(self, field: str, fingerprint: bytes, epoch: int) -> list[str]:
        """Return the names of a field's classes."""
        key = (fingerprint, field)
        if key not in self._classes:
            with self._session(fingerprint, epoch) as (session, _):
                timeout_s = self._options.open_timeout_s
                self._classes[key] = session.endpoint.classes(session.granted.session_id, field, timeout_s)
        return list(self._classes[key])

    @contextmanager
    def _session(self, fingerprint: bytes, epoch: int) -> Iterator[tuple[Session, Topology]]:
        ranks, runtime, info = self._ranks, self._runtime, get_worker_info()
        topology = ranks.topology(in_worker=info is not None)
        uneven = ranks.uneven(topology, in_worker=False) if self._options.uneven != "join" else "join"
        opener = Opener(self._options, Consumer(topology), runtime.connect, runtime.drop_channel, uneven)
        opener.expect = fingerprint
        retry = (Draining, ResourceError)
        session = opener.open(epoch, self._options.open_timeout_s, retry, StopSign())
        try:
            yield session, topology
        finally:
            session.close()
