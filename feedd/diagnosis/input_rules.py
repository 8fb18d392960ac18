"""Rules for jobs that wait for input: which stage makes them wait. Pure.

Each rule returns a finding if it fits. The first rule of a stage that fits decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from feedd.diagnosis import thresholds as limits
from feedd.diagnosis.finding import Evidence, Finding, Knob
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.diagnosis.window import Window

    Rule = Callable[[Window], Finding | None]

_MORE_PARTS: Final = 2


def _fetching(window: Window) -> Evidence:
    return Evidence("moments in which the next batch waited for a shard", window.fetching, 0.5, "share")


def _decoding(window: Window) -> Evidence:
    return Evidence("time that a decode worker works", window.worker_busy, limits.BUSY, "share")


def _peers(window: Window) -> tuple[Evidence, ...]:
    """Return what peers contribute, if there are any."""
    fetch = window.fetch
    if not (fetch.peer_fetches or fetch.peers_paused):
        return ()
    return (
        Evidence("bytes that came from peers", fetch.peer_share, 0.0, "share"),
        Evidence("peers that are left alone", fetch.peers_paused, 0, "peers"),
    )


def throttling(window: Window) -> Finding | None:
    """The store refuses requests."""
    fetch = window.fetch
    share = fetch.throttled / max(1, fetch.requests + fetch.throttled)
    if share <= limits.THROTTLED:
        return None
    evidence = Evidence("requests that the store refused", share, limits.THROTTLED, "share")
    advice = "Spread the shards over more prefixes, or ask the store's operator for a higher limit of requests."
    return Finding("s3_throttling", (evidence, _fetching(window)), advice)


def failing_peers(window: Window) -> Finding | None:
    """Peers do not bring the shards that they hold."""
    fetch = window.fetch
    share = fetch.peer_failures / max(1, fetch.peer_fetches)
    if share <= limits.PEERS_FAILED:
        return None
    evidence = Evidence("shards that peers failed to bring", share, limits.PEERS_FAILED, "share")
    advice = "The daemon's log names the peers. If they run, and are only late, raise peers.timeout."
    return Finding("failing_peers", (evidence, *_peers(window), _fetching(window)), advice)


def small_cache(window: Window) -> Finding | None:
    """Shards are evicted before they are needed again."""
    fetch = window.fetch
    needed = fetch.assigned_bytes
    fetched = max(1.0, fetch.read_bytes / fetch.shard_bytes) if fetch.shard_bytes else 1.0
    if needed <= fetch.cache_limit_bytes or fetch.evictions < max(1.0, limits.EVICTED * fetched):
        return None
    evicted = Evidence("shards evicted for each one fetched", fetch.evictions / fetched, limits.EVICTED, "shards")
    size = Evidence("bytes that the sessions read", needed, fetch.cache_limit_bytes, "bytes")
    knob = Knob("--cache-size", format_size(fetch.cache_limit_bytes), format_size(math.ceil(needed * 1.05)))
    return Finding(
        "cache_too_small", (evicted, size), "Make room for all shards of this node, or use more nodes.", knob
    )


def busy_disk(window: Window) -> Finding | None:
    """The cache's disk is busy."""
    if window.disk_busy is None or window.disk_busy < limits.BUSY:
        return None
    evidence = Evidence(f"time that the disk {window.disk} is busy", window.disk_busy, limits.BUSY, "share")
    if "EBS" in window.disk:
        advice = "Raise the volume's IOPS and throughput, or put the cache on the instance's NVMe disk or on /dev/shm."
    elif "NVMe" in window.disk:
        advice = (
            "Spread the cache over several NVMe disks (RAID 0), or put it on /dev/shm if the data fits into memory."
        )
    else:
        advice = "Put the cache on a local NVMe disk, or on /dev/shm if the data fits into memory."
    return Finding("disk", (evidence,), advice, Knob("--cache-dir", "", "a faster disk"), predicts=False)


def busy_disk_of_workers(window: Window) -> Finding | None:
    """Workers read from a busy disk, while cores are idle."""
    return busy_disk(window) if window.idle_cores >= limits.IDLE_CORES else None


def small_objects(window: Window) -> Finding | None:
    """Objects are so small that each costs more than its bytes."""
    size = window.fetch.object_bytes or window.fetch.shard_bytes
    if not 0 < size < limits.SMALL_OBJECT_BYTES:
        return None
    evidence = Evidence("mean size of an object", size, limits.SMALL_OBJECT_BYTES, "bytes")
    return Finding("small_objects", (evidence, _fetching(window)), "Pack the objects into shards of 1 to 128 MB.")


def latency(window: Window) -> Finding | None:
    """Requests mostly wait for their first byte."""
    fetch = window.fetch
    if fetch.first_byte_s is None or not fetch.request_s:
        return None
    share = min(1.0, fetch.first_byte_s / fetch.request_s)
    if share < limits.LATENCY_SHARE:
        return None
    evidence = (
        Evidence("time of a request before its first byte", share, limits.LATENCY_SHARE, "share"),
        Evidence("time to the first byte", fetch.first_byte_s, limits.FIRST_BYTE_S, "s"),
    )
    knob, factor = _more_parts(window)
    trip_s = fetch.round_trip_s or 0.0
    if trip_s >= limits.FAR_S and trip_s >= limits.FAR_SHARE * fetch.first_byte_s:
        far = Evidence("TCP round trip to the store", trip_s, limits.FAR_S, "s")
        advice = "Use a bucket in the region of this node, or a replica there. More parts at a time hide a part of it."
        return Finding("s3_far", (far, *evidence), advice, knob, factor)
    advice = "Ask for more parts at a time." if knob else "Read more shards at a time: Shuffle(window_shards=...)."
    return Finding("s3_latency", evidence, advice, knob, factor)


def _more_parts(window: Window) -> tuple[Knob | None, float | None]:
    """Return the option for more parts in flight and what it gains, if as many as allowed are in flight."""
    fetch = window.fetch
    if fetch.parts_max and fetch.parts < limits.PARTS_FULL * fetch.parts_max:
        return None, None
    parts = fetch.parts_max or max(1, round(fetch.parts))
    return Knob("fetch.parts_in_flight", str(parts), str(_MORE_PARTS * parts)), float(_MORE_PARTS)


def skewed_shards(window: Window) -> Finding | None:
    """One shard is several times as large as the others, and they wait for it."""
    fetch = window.fetch
    ratio = fetch.largest_bytes / fetch.shard_bytes if fetch.shard_bytes else 0.0
    if ratio < limits.SKEW:
        return None
    evidence = Evidence("largest shard over the mean", ratio, limits.SKEW, "times")
    advice = "Make shards of equal size: feedd pack --shard-size. A larger shuffle window hides a part of it."
    return Finding("skewed_shards", (evidence, _fetching(window)), advice)


def large_shards(window: Window) -> Finding | None:
    """Shards are so large that few arrive at a time."""
    size = window.fetch.shard_bytes
    if size <= limits.LARGE_OBJECT_BYTES:
        return None
    evidence = Evidence("mean size of a shard", size, limits.LARGE_OBJECT_BYTES, "bytes")
    return Finding("shard_sizes", (evidence, _fetching(window)), "Make shards of 1 to 128 MB.")


def bandwidth(window: Window) -> Finding:
    """Nothing else explains why shards come late."""
    rate = window.fetch.read_bytes / window.seconds
    evidence = (_fetching(window), Evidence("bytes from the store in a second", rate, 0.0, "bytes/s"), *_peers(window))
    advice = "Use machines with more network bandwidth, smaller samples, or a cache that lasts for later epochs."
    return Finding("s3_bandwidth", evidence, advice)


def few_workers(window: Window) -> Finding | None:
    """Workers are busy, and cores are idle."""
    if window.worker_busy < limits.BUSY or window.idle_cores < limits.IDLE_CORES or not window.workers:
        return None
    now = max(1, round(window.workers))
    more = min(len(window.core_busy), now + math.ceil(window.idle_cores))
    if more <= now:
        return None
    evidence = (_decoding(window), Evidence("idle cores", window.idle_cores, limits.IDLE_CORES, "cores"))
    factor = (window.workers + min(more - now, window.idle_cores)) / window.workers
    return Finding("too_few_workers", evidence, "Start more workers.", Knob("--workers", str(now), str(more)), factor)


def many_workers(window: Window) -> Finding | None:
    """More workers than cores wait for one another."""
    cores = len(window.core_busy)
    if not cores or window.workers <= cores or (window.cpu_pressure or 0.0) < limits.CPU_PRESSURE:
        return None
    evidence = (
        Evidence("decode workers", window.workers, cores, "workers"),
        Evidence("time in which a task waits for a core", window.cpu_pressure or 0.0, limits.CPU_PRESSURE, "share"),
    )
    knob = Knob("--workers", str(round(window.workers)), str(cores))
    return Finding("too_many_workers", evidence, "Use as many workers as cores.", knob, 1.0)


def uneven_cores(window: Window) -> Finding | None:
    """Work lies on some cores only."""
    if len(window.core_busy) < 2:
        return None
    spread = max(window.core_busy) - min(window.core_busy)
    if spread < limits.UNEVEN_CORES or max(window.core_busy) < limits.BUSY:
        return None
    evidence = Evidence("difference between the busiest and the idlest core", spread, limits.UNEVEN_CORES, "share")
    advice = "Look for processes that are bound to the daemon's cores, or bind them to others."
    return Finding("uneven_cores", (evidence,), advice)


def decoding(window: Window) -> Finding | None:
    """All cores decode, or work for others."""
    if window.worker_busy < limits.BUSY and window.cores_busy < limits.BUSY:
        return None
    evidence = (_decoding(window), Evidence("time that a core is busy", window.cores_busy, limits.BUSY, "share"))
    advice = (
        "Decode less: smaller images ahead of training, decoded_cache=True for later epochs, image:raw for decoding on "
        "the GPU. Or use machines with more cores."
    )
    return Finding("decode_cpu", evidence, advice, Knob("decoded_cache", "False", "True"))


def unpinned(window: Window) -> Finding | None:
    """The GPU copies from memory that is not registered."""
    found = [rank for rank in window.ranks if rank.unpinned]
    if not found:
        return None
    evidence = (Evidence("ranks whose memory is not registered", len(found), 0, "ranks"), _copying(window))
    advice = "See the trainer's log for CUDA's error. Containers may need the memlock limit unlimited."
    return Finding("unpinned_memory", evidence, advice)


def copies(window: Window) -> Finding | None:
    """Copies to the device take all the time."""
    if window.copying < limits.COPY_BUSY:
        return None
    advice = (
        "Copy fewer bytes: send uint8 and normalise on the device, crop on the host, keep fields that the model does "
        "not read on the host (on_host=)."
    )
    return unpinned(window) or Finding("h2d", (_copying(window),), advice)


def _copying(window: Window) -> Evidence:
    return Evidence("time in copies to the device", window.copying, limits.COPY_BUSY, "share")


def listing(window: Window) -> Finding | None:
    """A job that begins waits for the store's listing."""
    if window.listing < limits.LISTING or window.wall_s > window.seconds / 2:
        return None
    evidence = Evidence("moments in which an open waited for a listing", window.listing, limits.LISTING, "share")
    advice = "Name the objects in a manifest: feedd index URL --manifest, and open manifest+URL."
    return Finding("listing", (evidence,), advice, Knob("URL", "s3://", "manifest+s3://"))


def transport(window: Window) -> Finding | None:
    """Batches travel inside messages, or the daemon's main thread is busy."""
    inline = sum(rank.inline for rank in window.ranks)
    if inline:
        evidence = Evidence("ranks whose batches travel without shared memory", inline, 0, "ranks")
        advice = "Let trainers use the Unix socket, and mount its directory into their containers."
        knob = Knob("address", "", "unix:///path.sock")
        return Finding("transport", (evidence,), advice, knob, predicts=False)
    if window.loop_busy is None or window.loop_busy < limits.LOOP_BUSY:
        return None
    evidence = Evidence("time that the daemon's main thread is busy", window.loop_busy, limits.LOOP_BUSY, "share")
    return Finding("transport", (evidence,), "Run several daemons on the node.", Knob("--lanes", "1", "auto"))


FETCH_RULES: Final[tuple[Rule, ...]] = (
    throttling,
    failing_peers,
    small_cache,
    busy_disk,
    small_objects,
    latency,
    skewed_shards,
    large_shards,
    bandwidth,
)
DECODE_RULES: Final[tuple[Rule, ...]] = (many_workers, busy_disk_of_workers, few_workers, uneven_cores, decoding)
HAND_OFF_RULES: Final[tuple[Rule, ...]] = (unpinned, transport)
