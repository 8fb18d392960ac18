"""What was measured of a node over some seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_REPORT_LAG_S: Final = 1.5
"""Reports come once a second: so much of a window's end may not be reported yet."""


@dataclass(frozen=True, slots=True)
class RankWindow:
    """The trainer process of one session.

    Attributes:
        session: first digits of its id.
        rank: rank in the job.
        steps: batches that it took.
        wall_s: seconds that these steps took.
        wait_s: seconds of them that it waited for a batch.
        pause_s: seconds of them in steps of several times the usual length.
        device: where a ``DeviceLoader`` takes the batches; empty: there is none.
        unpinned: its device copies from memory that is not registered.
        inline: its batches travel without shared memory.
        host_busy: share of a core that its main thread takes; None: not known.
        written_bytes: bytes that the process wrote; None: not known.
        write_calls: write calls of the process; None: not known.
        copy_s: seconds that its ``DeviceLoader`` copied to the device, in a thread of its own.
    """

    session: str
    rank: int
    steps: int
    wall_s: float
    wait_s: float
    pause_s: float = 0.0
    device: str = ""
    unpinned: bool = False
    inline: bool = False
    host_busy: float | None = None
    written_bytes: int | None = None
    write_calls: int | None = None
    copy_s: float = 0.0

    @property
    def copying(self) -> float:
        """Share of time that it copied to the device."""
        return min(1.0, self.copy_s / self.wall_s) if self.wall_s else 0.0

    @property
    def wait(self) -> float:
        """Share of time that it waited for a batch."""
        return min(1.0, self.wait_s / self.wall_s) if self.wall_s else 0.0

    @property
    def step_s(self) -> float:
        """Mean time of a step without waits and pauses."""
        return max(0.0, self.wall_s - self.wait_s - self.pause_s) / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class FetchWindow:
    """Requests to stores.

    Attributes:
        requests: ranged GETs that ended.
        read_bytes: bytes of objects received.
        request_s: mean time of a ranged GET.
        first_byte_s: mean time to the first byte of its body; None: not known.
        throttled: requests that the store refused because there were too many.
        round_trip_s: mean TCP round trip of the connections that ranged GETs used; None: not known.
        parts: mean number of parts in flight.
        parts_max: parts that may be in flight; 0: not known.
        hits: shards found in the cache.
        misses: shards that had to be fetched.
        evictions: shards evicted to make room.
        cache_limit_bytes: size of the cache; 0: there is none.
        assigned_bytes: bytes of the shards that the sessions read.
        assigned_shards: number of these shards.
        largest_bytes: size of the largest of them.
        object_bytes: mean size of an object of the datasets; below a shard's size if shards are packs of objects.
        peer_bytes: bytes of objects received from other daemons; not in ``read_bytes``.
        peer_fetches: shards that other daemons were asked for.
        peer_failures: those of them that a daemon did not bring, because it failed or was silent.
        peers_paused: other daemons that failed and are left alone at the end.
    """

    requests: int = 0
    read_bytes: int = 0
    request_s: float = 0.0
    first_byte_s: float | None = None
    throttled: int = 0
    round_trip_s: float | None = None
    parts: float = 0.0
    parts_max: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    cache_limit_bytes: int = 0
    assigned_bytes: int = 0
    assigned_shards: int = 0
    largest_bytes: int = 0
    object_bytes: int = 0
    peer_bytes: int = 0
    peer_fetches: int = 0
    peer_failures: int = 0
    peers_paused: int = 0

    @property
    def peer_share(self) -> float:
        """Share of the bytes that came from other daemons."""
        return self.peer_bytes / (self.peer_bytes + self.read_bytes) if self.peer_bytes else 0.0

    @property
    def hit_share(self) -> float:
        """Share of shards that were found in the cache."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 1.0

    @property
    def shard_bytes(self) -> float:
        """Mean size of a shard."""
        return self.assigned_bytes / self.assigned_shards if self.assigned_shards else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """A node over some seconds.

    Attributes:
        seconds: length of the window.
        ranks: trainers that took batches, or waited for one.
        fetch: requests and cache.
        fetching: share of the moments in which a batch that was asked for waited for a shard.
        decoding: share of the moments in which it was being decoded.
        workers: mean number of decode workers.
        worker_busy: mean share of time that a worker decoded.
        core_busy: utilisation of each core that the daemon may use, by all processes; empty: not known.
        cpu_pressure: share of time in which some task waited for a core; None: not known.
        disk_busy: utilisation of the cache's disk; None: not known, or no disk.
        disk: name of that disk, and its kind as far as it is known.
        loop_busy: share of a core that the daemon's main thread takes; None: not known.
        gpu_busy: utilisation of the trainers' least busy GPU; None: not known.
        link_sent: share of the busiest network link's rate at which it sends; None: no link tells its rate.
        listing: share of the moments in which an open waited for a listing.
        job_count: jobs of the node; ``ranks`` are those of one of them.
    """

    seconds: float
    ranks: tuple[RankWindow, ...]
    fetch: FetchWindow = FetchWindow()
    fetching: float = 0.0
    decoding: float = 0.0
    workers: float = 0.0
    worker_busy: float = 0.0
    core_busy: tuple[float, ...] = ()
    cpu_pressure: float | None = None
    disk_busy: float | None = None
    disk: str = ""
    loop_busy: float | None = None
    gpu_busy: float | None = None
    link_sent: float | None = None
    listing: float = 0.0
    job_count: int = 1

    @property
    def copying(self) -> float:
        """Largest share of time that a rank copied to its device."""
        return max((rank.copying for rank in self.ranks), default=0.0)

    @property
    def wall_s(self) -> float:
        """Seconds of all ranks together."""
        return sum(rank.wall_s for rank in self.ranks)

    @property
    def wait(self) -> float:
        """Share of the ranks' time that they waited for a batch."""
        return min(1.0, sum(rank.wait_s for rank in self.ranks) / self.wall_s) if self.wall_s else 0.0

    @property
    def pause(self) -> float:
        """Share of the ranks' time in pauses."""
        return sum(rank.pause_s for rank in self.ranks) / self.wall_s if self.wall_s else 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches that the ranks took in a second, together: each over the time that it has reported."""
        least_s = max(self.seconds - _REPORT_LAG_S, self.seconds / 2)
        return sum(rank.steps / max(rank.wall_s, least_s) for rank in self.ranks)

    @property
    def cores_busy(self) -> float:
        """Mean utilisation of the daemon's cores; 0 if not known."""
        return sum(self.core_busy) / len(self.core_busy) if self.core_busy else 0.0

    @property
    def idle_cores(self) -> float:
        """Cores that nobody uses; 0 if not known."""
        return sum(1 - busy for busy in self.core_busy)
