"""Thresholds of the diagnosis, each with its source. Pure."""

from __future__ import annotations

from typing import Final

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
