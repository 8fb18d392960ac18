"""Opens sessions for one consumer of a rank: builds the request and retries Open."""

from __future__ import annotations

import logging
import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd_client._version import PROTOCOL_MAJOR, PROTOCOL_MINOR, __version__
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.errors import (
    DaemonUnreachable,
    Draining,
    FeedError,
    ResourceError,
)
from feedd_client.session import CLOSE_TIMEOUT_S, Session
from feedd_client.topology import daemon_of, planned_lanes
from feedd_client.transport import FULL_HINT, is_full, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.lifetime import StopSign
    from feedd_client.options import FeedOptions
    from feedd_client.topology import Topology
    from feedd_client.transport import Endpoint

_log: Final = logging.getLogger("feedd_client")
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
NEAR_S: Final = 30.0  # a daemon that is being replaced usually answers again within this time
NEAR_BACKOFF_S: Final = 0.1  # retry interval until then: probing a socket costs microseconds
STANDBY_S: Final = 1.0  # a daemon that stands by answers within this time
STANDBY_BACKOFF_S: Final = 0.02  # retry interval until then, because it is a part of the trainer's pause
_CUTS_MAX: Final = 3  # opens that are cut off in a row, although the daemon has a place for each


@dataclass(frozen=True, slots=True)
class Consumer:
    """The part of the dataset that this iterator takes: a rank's stream, split among DataLoader workers."""

    topology: Topology
    count: int = 1
    index: int = 0

    @property
    def logs(self) -> bool:
        """Whether this process logs notices for all processes of its node."""
        return self.index == 0 and self.topology.local_rank == 0

    def first_step(self, step: int) -> int:
        """Return this consumer's first step at or after ``step``."""
        return step + (self.index - step) % self.count


class ToDaemon(NamedTuple):
    """The way to a node's daemons.

    Attributes:
        connect: returns a usable endpoint, a new one after ``forget``. Its argument chooses the daemon by the number of
            daemons.
        forget: gives the endpoint up.
    """

    connect: Callable[[Callable[[int], int]], Endpoint]
    forget: Callable[[], None]


class Opener:
    """Opens sessions: builds the request, keeps the deadline and retries."""

    def __init__(
        self,
        options: FeedOptions,
        consumer: Consumer,
        to_daemon: ToDaemon,
        uneven: str = "allow",
        *,
        lane_count: int | None = None,
        pinned: bool = False,
    ) -> None:
        """Keep the arguments of later requests.

        ``uneven`` is in wire form. ``lane_count``: lanes of the plan; None: chosen when the node says how many daemons
        it has. ``pinned``: a device will read the arena directly, which is impossible if other jobs read the arena too.
        """
        self.forget = to_daemon.forget
        self.uneven = uneven
        self.expect = b""
        self.lane_count = lane_count
        self._options = options
        self._consumer = consumer
        self._connect = to_daemon.connect
        self._pinned = pinned

    def open(self, epoch: int, timeout_s: float, retry: tuple[type[FeedError], ...], stop: StopSign) -> Session:
        """Open a session; retry on the errors in ``retry`` until ``timeout_s`` is over.

        Once a fingerprint is known (``expect``), every further session must be of the same dataset. After a daemon
        reported that it is shutting down, an unreachable daemon is also retried until its successor listens. A daemon
        that has no place for a connection is always retried, because it drops silent connections after some seconds.

        Raises:
            FeedError: the last error.
        """
        began_s = time.monotonic()
        deadline_s = began_s + timeout_s
        backoff_s = BACKOFF_FIRST_S
        told = False
        patience = _Patience(retry)
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.1)
            try:
                endpoint = self._connect(self._daemon_of)
                granted = endpoint.open(self._request(epoch), min(left_s, self._options.open_timeout_s))
                return _adopted(endpoint, granted, self.lane_count or 1)
            except FeedError as error:
                if not patience.covers(error):
                    raise
                backoff_s = min(backoff_s, _backoff_max_s(error, time.monotonic() - began_s))
                pause_s = backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter needs no secrecy
                if time.monotonic() + pause_s >= deadline_s or stop.wait(pause_s):
                    if patience.leaving is None or isinstance(error, Draining):
                        raise
                    raise error from patience.leaving
                if not told and (patience.full or isinstance(error, (ResourceError, Draining))):  # this may take long
                    _log.warning("cannot open yet, trying again for up to %.0f s: %s", timeout_s, str(error))
                    told = True
                self.forget()
                backoff_s *= 2

    def _daemon_of(self, daemon_count: int) -> int:
        """Return which of a node's daemons serves this rank; a new plan gets its lanes here."""
        topology = self._consumer.topology
        if self.lane_count is None:
            self.lane_count = planned_lanes(topology, daemon_count, self._options.partitions)
        return daemon_of(topology, self.lane_count, daemon_count, self._options.all_urls)

    def settle(self, fingerprint: bytes, uneven: str) -> None:
        """Require this dataset and this ``uneven`` mode for every further session."""
        self.expect = fingerprint
        self.uneven = uneven

    def _request(self, epoch: int) -> pb.OpenRequest:
        options, topology = self._options, self._consumer.topology
        return pb.OpenRequest(
            version=pb.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
            urls=options.urls,
            recipe=pb.Recipe(
                fields=_fields(options.fields),
                batch_size=options.wire_batch_size,
                keys=options.keys,
                bad_samples_max=options.samples.budget,
                bad_samples=options.samples.bad_samples or "",
                filters=options.samples.filters,
            ),
            topology=pb.Topology(
                world_size=topology.world_size,
                rank=topology.rank,
                local_world_size=topology.local_world_size,
                local_rank=topology.local_rank,
                node_count=topology.node_count,
                node_rank=topology.node_rank,
            ),
            shuffle=pb.Shuffle(
                enabled=options.shuffle is not None,
                window_shards=options.window_shards,
                window_bytes=options.window_bytes,
                bucket_by=options.bucket_by,
            ),
            seed=options.seed,
            sharding=options.sharding,
            left_to_channel=options.left_to_channel,
            partitions=options.partitions or 0,
            uneven=self.uneven,
            steps=options.steps or 0,
            share=options.share or "",
            shared_arena=options.share is not None and not self._pinned,
            runs=True,
            lanes=self.lane_count or 1,
            epoch=epoch,
            prefetch_batches=options.prefetch or 0,
            consumer_count=self._consumer.count,
            consumer_index=self._consumer.index,
            client_version=__version__,
            open_id=secrets.token_hex(8),
            expect_fingerprint=self.expect,
            sources=[
                pb.Source(
                    urls=source.urls,
                    fields=_fields(source.fields),
                    weights=[pb.Weight(epoch=since, weight=weight) for since, weight in source.weights],
                )
                for source in options.sources
            ],
            mix=pb.Mix(mode=options.mix, samples_per_epoch=options.samples_per_epoch or 0) if options.sources else None,
            decoded_cache=options.decoded_cache,
        )


class _Patience:
    """Which errors an open waits out.

    Attributes:
        leaving: what a daemon said that shut down; None: no daemon did.
        full: the last error was that the daemon had no place for a connection.
    """

    def __init__(self, retry: tuple[type[FeedError], ...]) -> None:
        self._retry = retry
        self._cut_count = 0
        self.leaving: Draining | None = None
        self.full = False

    def covers(self, error: FeedError) -> bool:
        """Return whether to try again after ``error``. Its hint says so if the daemon has no place."""
        self.full = False
        if isinstance(error, Draining):
            self.leaving = error
        if isinstance(error, self._retry):
            return True
        if not isinstance(error, DaemonUnreachable) or not error.reconnect:
            return False
        if self.leaving is not None:
            return True
        full = is_full(parse_address(error.object))
        self._cut_count = 0 if full else self._cut_count + 1
        if full:
            self.full = True
            error.hint = FULL_HINT
        return full or (full is None and self._cut_count < _CUTS_MAX)


def _backoff_max_s(error: FeedError, elapsed_s: float) -> float:
    """Return the longest pause before the next try, ``elapsed_s`` after the first one."""
    if not isinstance(error, (Draining, DaemonUnreachable)) or elapsed_s >= NEAR_S:
        return BACKOFF_MAX_S
    return NEAR_BACKOFF_S if elapsed_s >= STANDBY_S else STANDBY_BACKOFF_S


def _fields(fields: tuple[tuple[str, str], ...]) -> list[pb.Field]:
    return [pb.Field(name=name, recipe=text) for name, text in fields]


def _adopted(endpoint: Endpoint, granted: pb.OpenResponse, lane_count: int) -> Session:
    """Return the session; a session that this client cannot use is closed at once."""
    try:
        return Session(endpoint, granted, lane_count)
    except BaseException:
        endpoint.close_session(granted.session_id, CLOSE_TIMEOUT_S)
        raise
