"""Names the one bottleneck of a node, what limits behind it, and what turning the knob gains. Pure."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from feedd.diagnosis.finding import Diagnosis, Evidence, Finding, Knob
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.diagnosis.window import Window

    Rule = Callable[[Window], Finding | None]
    from collections.abc import Sequence

WAIT_MODERATE: Final = 0.05
"""Share of a step that waits for input, from which input matters. Source: TensorFlow's profiler."""
BUSY: Final = 0.90
"""Share of time from which a worker, a core or a disk counts as busy. Source: SageMaker's rule CPUBottleneck."""
IDLE_CORES: Final = 0.25
"""Idle cores from which another worker would find room. Source: a quarter of a core is worth the change on any node."""
WORKERS_IDLE: Final = 0.50
"""Share of time below which workers do not limit, whatever batches are being decoded: they wait for bytes."""
FETCHING: Final = 0.20
"""Share of moments with a batch that waits for a shard, from which fetching counts while workers are idle."""
GPU_LOW: Final = 0.70
"""Utilisation of a GPU below which it has room. Source: SageMaker's rule LowGPUUtilization."""
GPU_BUSY: Final = 0.90
CPU_PRESSURE: Final = 0.50
"""Share of time in which some task waits for a core. Source: half of the time, as in SageMaker's rule IOBottleneck."""
FIRST_BYTE_S: Final = 0.03
"""Time to the first byte of S3 in the same region, at most. Source: AWS names 100 to 200 ms for small objects as
usual; stores in the same data centre took 10 to 30 ms in our runs."""
FAR_S: Final = 0.01
"""TCP round trip from which the store counts as far. Source: zones of a region are 1 to 2 ms apart, regions 10 ms and
more."""
FAR_SHARE: Final = 0.40
"""Share of the time to the first byte that one round trip takes, from which the distance counts more than the store."""
PARTS_FULL: Final = 0.75
"""Share of ``fetch.parts_in_flight`` in use from which a higher value lets more parts fly."""
SKEW: Final = 4.0
"""Size of the largest shard over the mean, from which one shard keeps others waiting."""
LISTING: Final = 0.50
"""Share of the moments in which an open waited for a listing."""
LINK_BUSY: Final = 0.80
"""Share of a network link's rate from which gradients queue. Source: above it, latency grows several times."""
COPY_BUSY: Final = 0.80
"""Share of time in copies to the device from which they limit: the copy thread also waits for events and batches."""
LOOP_BUSY: Final = 0.80
"""Share of a core from which the daemon's main thread makes batches wait for one another."""
THROTTLED: Final = 0.02
"""Share of requests that the store refused. Source: AWS advises to slow down at any; 2 % is beyond single ones."""
PEERS_FAILED: Final = 0.10
"""Share of the shards asked of peers that came from the store after a failure. Source: a peer that is silent for good
fails once, and is then left alone; a tenth means that peers fail again and again."""
EVICTED: Final = 0.50
"""Shards evicted for each one fetched, from which the cache counts as too small. A full cache evicts one for each. The
share of hits says less: each batch of a shard is one."""
LATENCY_SHARE: Final = 0.50
"""Share of a request before its first byte from which latency counts more than bandwidth."""
SMALL_OBJECT_BYTES: Final = 1_000_000
LARGE_OBJECT_BYTES: Final = 128_000_000
"""Sizes of shards that suit feedd."""
PAUSE_SHARE: Final = 0.10
"""Share of time in pauses, that is in steps of five times the usual length, from which they count."""
PAUSE_OVER_WAIT: Final = 2.0
"""Time in pauses over the time that the trainer waits, from which pauses come first."""
CHECKPOINT_BYTES: Final = 1 << 20
"""Bytes that a trainer writes in a pause from which the pause counts as a checkpoint."""
STRAGGLER: Final = 1.5
"""Step time of a rank over the median from which it counts as a straggler. Ranks in step wait for the slowest."""
WRITES_PER_STEP: Final = 4.0
"""Write calls of a trainer in each step from which its output counts: one line of a progress bar takes one or two."""
WRITES_PER_S: Final = 40.0
"""Write calls of a trainer in each second from which its output counts. A job with long steps, which prints a line in
each of them, makes fewer: its threads wake each other some times a second, with a write call each time."""
HOST_BUSY: Final = 0.90
"""Share of a step in which the trainer's main thread computes, from which a GPU waits for the host."""
UNEVEN_CORES: Final = 0.50
"""Difference in utilisation of cores. Source: SageMaker's rule LoadBalancing, for GPUs."""


_MORE_PARTS: Final = 2


def _fetching(window: Window) -> Evidence:
    return Evidence("moments in which the next batch waited for a shard", window.fetching, 0.5, "share")


def _decoding(window: Window) -> Evidence:
    return Evidence("time that a decode worker works", window.worker_busy, BUSY, "share")


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
    if share <= THROTTLED:
        return None
    evidence = Evidence("requests that the store refused", share, THROTTLED, "share")
    advice = "Spread the shards over more prefixes, or ask the store's operator for a higher limit of requests."
    return Finding("s3_throttling", (evidence, _fetching(window)), advice)


def failing_peers(window: Window) -> Finding | None:
    """Peers do not bring the shards that they hold."""
    fetch = window.fetch
    share = fetch.peer_failures / max(1, fetch.peer_fetches)
    if share <= PEERS_FAILED:
        return None
    evidence = Evidence("shards that peers failed to bring", share, PEERS_FAILED, "share")
    advice = "The daemon's log names the peers. If they run, and are only late, raise peers.timeout."
    return Finding("failing_peers", (evidence, *_peers(window), _fetching(window)), advice)


def small_cache(window: Window) -> Finding | None:
    """Shards are evicted before they are needed again."""
    fetch = window.fetch
    needed = fetch.assigned_bytes
    fetched = max(1.0, fetch.read_bytes / fetch.shard_bytes) if fetch.shard_bytes else 1.0
    if needed <= fetch.cache_limit_bytes or fetch.evictions < max(1.0, EVICTED * fetched):
        return None
    evicted = Evidence("shards evicted for each one fetched", fetch.evictions / fetched, EVICTED, "shards")
    size = Evidence("bytes that the sessions read", needed, fetch.cache_limit_bytes, "bytes")
    knob = Knob("--cache-size", format_size(fetch.cache_limit_bytes), format_size(math.ceil(needed * 1.05)))
    return Finding(
        "cache_too_small", (evicted, size), "Make room for all shards of this node, or use more nodes.", knob
    )


def busy_disk(window: Window) -> Finding | None:
    """The cache's disk is busy."""
    if window.disk_busy is None or window.disk_busy < BUSY:
        return None
    evidence = Evidence(f"time that the disk {window.disk} is busy", window.disk_busy, BUSY, "share")
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
    return busy_disk(window) if window.idle_cores >= IDLE_CORES else None


def small_objects(window: Window) -> Finding | None:
    """Objects are so small that each costs more than its bytes."""
    size = window.fetch.object_bytes or window.fetch.shard_bytes
    if not 0 < size < SMALL_OBJECT_BYTES:
        return None
    evidence = Evidence("mean size of an object", size, SMALL_OBJECT_BYTES, "bytes")
    return Finding("small_objects", (evidence, _fetching(window)), "Pack the objects into shards of 1 to 128 MB.")


def latency(window: Window) -> Finding | None:
    """Requests mostly wait for their first byte."""
    fetch = window.fetch
    if fetch.first_byte_s is None or not fetch.request_s:
        return None
    share = min(1.0, fetch.first_byte_s / fetch.request_s)
    if share < LATENCY_SHARE:
        return None
    evidence = (
        Evidence("time of a request before its first byte", share, LATENCY_SHARE, "share"),
        Evidence("time to the first byte", fetch.first_byte_s, FIRST_BYTE_S, "s"),
    )
    knob, factor = _more_parts(window)
    trip_s = fetch.round_trip_s or 0.0
    if trip_s >= FAR_S and trip_s >= FAR_SHARE * fetch.first_byte_s:
        far = Evidence("TCP round trip to the store", trip_s, FAR_S, "s")
        advice = "Use a bucket in the region of this node, or a replica there. More parts at a time hide a part of it."
        return Finding("s3_far", (far, *evidence), advice, knob, factor)
    advice = "Ask for more parts at a time." if knob else "Read more shards at a time: Shuffle(window_shards=...)."
    return Finding("s3_latency", evidence, advice, knob, factor)


def _more_parts(window: Window) -> tuple[Knob | None, float | None]:
    """Return the option for more parts in flight and what it gains, if as many as allowed are in flight."""
    fetch = window.fetch
    if fetch.parts_max and fetch.parts < PARTS_FULL * fetch.parts_max:
        return None, None
    parts = fetch.parts_max or max(1, round(fetch.parts))
    return Knob("fetch.parts_in_flight", str(parts), str(_MORE_PARTS * parts)), float(_MORE_PARTS)


def skewed_shards(window: Window) -> Finding | None:
    """One shard is several times as large as the others, and they wait for it."""
    fetch = window.fetch
    ratio = fetch.largest_bytes / fetch.shard_bytes if fetch.shard_bytes else 0.0
    if ratio < SKEW:
        return None
    evidence = Evidence("largest shard over the mean", ratio, SKEW, "times")
    advice = "Make shards of equal size: feedd pack --shard-size. A larger shuffle window hides a part of it."
    return Finding("skewed_shards", (evidence, _fetching(window)), advice)


def large_shards(window: Window) -> Finding | None:
    """Shards are so large that few arrive at a time."""
    size = window.fetch.shard_bytes
    if size <= LARGE_OBJECT_BYTES:
        return None
    evidence = Evidence("mean size of a shard", size, LARGE_OBJECT_BYTES, "bytes")
    return Finding("shard_sizes", (evidence, _fetching(window)), "Make shards of 1 to 128 MB.")


def bandwidth(window: Window) -> Finding:
    """Nothing else explains why shards come late."""
    rate = window.fetch.read_bytes / window.seconds
    evidence = (_fetching(window), Evidence("bytes from the store in a second", rate, 0.0, "bytes/s"), *_peers(window))
    advice = "Use machines with more network bandwidth, smaller samples, or a cache that lasts for later epochs."
    return Finding("s3_bandwidth", evidence, advice)


def few_workers(window: Window) -> Finding | None:
    """Workers are busy, and cores are idle."""
    if window.worker_busy < BUSY or window.idle_cores < IDLE_CORES or not window.workers:
        return None
    now = max(1, round(window.workers))
    more = min(len(window.core_busy), now + math.ceil(window.idle_cores))
    if more <= now:
        return None
    evidence = (_decoding(window), Evidence("idle cores", window.idle_cores, IDLE_CORES, "cores"))
    factor = (window.workers + min(more - now, window.idle_cores)) / window.workers
    return Finding("too_few_workers", evidence, "Start more workers.", Knob("--workers", str(now), str(more)), factor)


def many_workers(window: Window) -> Finding | None:
    """More workers than cores wait for one another."""
    cores = len(window.core_busy)
    if not cores or window.workers <= cores or (window.cpu_pressure or 0.0) < CPU_PRESSURE:
        return None
    evidence = (
        Evidence("decode workers", window.workers, cores, "workers"),
        Evidence("time in which a task waits for a core", window.cpu_pressure or 0.0, CPU_PRESSURE, "share"),
    )
    knob = Knob("--workers", str(round(window.workers)), str(cores))
    return Finding("too_many_workers", evidence, "Use as many workers as cores.", knob, 1.0)


def uneven_cores(window: Window) -> Finding | None:
    """Work lies on some cores only."""
    if len(window.core_busy) < 2:
        return None
    spread = max(window.core_busy) - min(window.core_busy)
    if spread < UNEVEN_CORES or max(window.core_busy) < BUSY:
        return None
    evidence = Evidence("difference between the busiest and the idlest core", spread, UNEVEN_CORES, "share")
    advice = "Look for processes that are bound to the daemon's cores, or bind them to others."
    return Finding("uneven_cores", (evidence,), advice)


def decoding(window: Window) -> Finding | None:
    """All cores decode, or work for others."""
    if window.worker_busy < BUSY and window.cores_busy < BUSY:
        return None
    evidence = (_decoding(window), Evidence("time that a core is busy", window.cores_busy, BUSY, "share"))
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
    if window.copying < COPY_BUSY:
        return None
    advice = (
        "Copy fewer bytes: send uint8 and normalise on the device, crop on the host, keep fields that the model does "
        "not read on the host (on_host=)."
    )
    return unpinned(window) or Finding("h2d", (_copying(window),), advice)


def _copying(window: Window) -> Evidence:
    return Evidence("time in copies to the device", window.copying, COPY_BUSY, "share")


def listing(window: Window) -> Finding | None:
    """A job that begins waits for the store's listing."""
    if window.listing < LISTING or window.wall_s > window.seconds / 2:
        return None
    evidence = Evidence("moments in which an open waited for a listing", window.listing, LISTING, "share")
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
    if window.loop_busy is None or window.loop_busy < LOOP_BUSY:
        return None
    evidence = Evidence("time that the daemon's main thread is busy", window.loop_busy, LOOP_BUSY, "share")
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


_RANKS_MIN: Final = 3


def straggler(window: Window) -> Finding | None:
    """One rank's own steps take longer than those of the others."""
    steps_s = [rank.step_s for rank in window.ranks if rank.steps]
    if len(steps_s) < _RANKS_MIN:
        return None
    ratio = max(steps_s) / (statistics.median(steps_s) or 1.0)
    if ratio < STRAGGLER:
        return None
    slowest = max(window.ranks, key=lambda rank: rank.step_s)
    evidence = Evidence(f"step of rank {slowest.rank} over the median step", ratio, STRAGGLER, "times")
    return Finding("straggler", (evidence,), f"Look at the machine and the code of rank {slowest.rank}.")


def pauses(window: Window) -> Finding | None:
    """Some steps take several times as long as the others."""
    if window.pause < PAUSE_SHARE:
        return None
    written = max((rank.written_bytes or 0 for rank in window.ranks), default=0)
    evidence = Evidence("time in pauses", window.pause, PAUSE_SHARE, "share")
    factor = 1 / (1 - min(window.pause, 0.99))
    if written >= CHECKPOINT_BYTES:
        wrote = Evidence("bytes that a trainer wrote", written, CHECKPOINT_BYTES, "bytes")
        advice = "Write checkpoints less often, or asynchronously (torch.distributed.checkpoint.async_save)."
        return Finding("checkpointing", (evidence, wrote), advice, factor=factor)
    return Finding(
        "evaluation", (evidence,), "Evaluate less often, on fewer samples, or in a job of its own.", factor=factor
    )


def output(window: Window) -> Finding | None:
    """The trainer writes several times in each step."""
    steps = sum(rank.steps for rank in window.ranks)
    calls = sum(rank.write_calls or 0 for rank in window.ranks)
    trainer_s = sum(rank.wall_s for rank in window.ranks)
    if not steps or not trainer_s:
        return None
    if calls / steps < WRITES_PER_STEP or calls / trainer_s < WRITES_PER_S:
        return None
    in_step = Evidence("write calls of the trainer in a step", calls / steps, WRITES_PER_STEP, "calls")
    in_second = Evidence("write calls of the trainer in a second", calls / trainer_s, WRITES_PER_S, "calls")
    advice = "Log metrics and progress every 10 to 100 steps."
    return Finding("logging", (in_step, in_second), advice, Knob("log interval", "", "50"))


def communication(window: Window) -> Finding | None:
    """The node sends as fast as its network link can."""
    if window.link_sent is None or window.link_sent < LINK_BUSY:
        return None
    evidence = Evidence("share of the network link's rate that the node sends", window.link_sent, LINK_BUSY, "share")
    advice = "Send less: gradients in bfloat16, gradient accumulation, larger buckets. Or use a faster network (EFA)."
    return Finding("communication", (evidence,), advice)


def gpu(window: Window) -> Finding | None:
    """What the GPU's utilisation tells."""
    busy = window.gpu_busy
    if busy is None:
        return None
    evidence = Evidence("time that the GPU is busy", busy, GPU_LOW, "share")
    if busy >= GPU_BUSY:
        return Finding("compute_bound", (evidence,), "The step itself takes the time: see a profile of the model.")
    if busy >= GPU_LOW:
        return None
    host = max((rank.host_busy or 0.0 for rank in window.ranks), default=0.0)
    if host >= HOST_BUSY:
        computes = Evidence("time that a trainer's main thread computes", host, HOST_BUSY, "share")
        advice = "Move transforms, losses and metrics to the GPU, and avoid .item() in each step."
        return Finding("host_compute", (evidence, computes), advice)
    return Finding("small_batch", (evidence,), "Use larger batches, or torch.compile with CUDA graphs.")


def healthy(window: Window) -> Finding:
    """Nothing stands out."""
    evidence = Evidence("time that the trainer waits for a batch", window.wait, WAIT_MODERATE, "share")
    return Finding("healthy", (evidence,), "feedd delivers in time. A faster step would still get its data.")


TRAINER_RULES: Final[tuple[Rule, ...]] = (straggler, pauses, output, communication, gpu, healthy)


_LEAST_BUSY: Final = 0.01
_FAIR_SHARE: Final = 0.5
_BEHIND: Final = {
    "trainer": "compute_bound",
    "fetch": "s3_bandwidth",
    "decode": "decode_cpu",
    "hand-off": "transport",
    "copies": "h2d",
}


def diagnose(window: Window) -> Diagnosis:
    """Return the bottleneck of a window."""
    now, busy = window.batches_per_s, _busy(window)
    if (lists := listing(window)) is not None:
        return Diagnosis(lists, "", now, None)
    pauses_longer = window.pause >= PAUSE_SHARE and window.pause > PAUSE_OVER_WAIT * window.wait
    if window.wait < WAIT_MODERATE or pauses_longer:
        found = _first(TRAINER_RULES, window)
        assert found is not None, "the last rule always fits"
        behind = _slowest(busy, "trainer") if found.verdict in {"healthy", "compute_bound"} else ""
        return Diagnosis(found, behind, now, now * found.factor if now and found.factor is not None else None)
    waits = Evidence("time that the trainer waits for a batch", window.wait, WAIT_MODERATE, "share")
    stage, found = _input(window)
    finding = Finding(found.verdict, (waits, *found.evidence), found.advice, found.knob, found.factor)
    others = [share for name, share in busy.items() if name != stage]
    room = 1 / max(_LEAST_BUSY, *others)
    gain = room if found.factor is None else min(room, found.factor)
    known = now and found.predicts and (found.knob is not None or found.factor is not None)
    return Diagnosis(finding, _slowest(busy, stage), now, now * max(1.0, gain) if known else None)


def _first(rules: Sequence[Rule], window: Window) -> Finding | None:
    return next((found for rule in rules if (found := rule(window)) is not None), None)


def _input(window: Window) -> tuple[str, Finding]:
    """Return the stage that makes the trainer wait, and why it does."""
    if (copied := copies(window)) is not None:
        return "copies", copied
    hand_off = ("hand-off", HAND_OFF_RULES)
    fetch, decode = ("fetch", FETCH_RULES), ("decode", DECODE_RULES)
    idle = window.worker_busy < WORKERS_IDLE and window.fetch.misses > 0 and window.fetching >= FETCHING
    fetches = (window.fetching > window.decoding and window.worker_busy < BUSY) or idle
    # Cores also work for the hand-off, so they tell of decoding only if workers are busy.
    later = (decode, hand_off) if window.worker_busy >= BUSY else (hand_off, decode)
    for stage, rules in (fetch, *later) if fetches else later:
        found = _first(rules, window)
        if found is not None:
            return stage, found
    if window.fetch.requests and window.fetching > 0:
        found = _first(FETCH_RULES, window)
        assert found is not None, "the last rule always fits"
        return "fetch", found
    return "", Finding("unknown", (), "Measure again while the job is in the middle of an epoch.")


def _busy(window: Window) -> dict[str, float]:
    """Return the share of time that each stage is busy: what it does now over what it could do."""
    # Of the cores, only the job's own part grows with its rate. Others leave it the idle cores, or a fair share.
    own = window.worker_busy * window.workers + (window.loop_busy or 0.0)
    own += sum(rank.host_busy or 0.0 for rank in window.ranks)
    cores = max(own + window.idle_cores, _FAIR_SHARE * len(window.core_busy))
    decode = own / cores if cores else window.worker_busy
    fetch = window.fetching * (1 - window.fetch.hit_share)
    return {
        "trainer": 1 - window.wait,
        "fetch": fetch,
        "decode": decode,
        "hand-off": window.loop_busy or 0.0,
        "copies": window.copying,
    }


def _slowest(busy: dict[str, float], but: str) -> str:
    others = {name: share for name, share in busy.items() if name != but}
    name = max(others, key=others.__getitem__)
    return _BEHIND[name] if others[name] >= _LEAST_BUSY else ""
