"""Thresholds of the diagnosis, each with its source. Pure."""

from __future__ import annotations

from typing import Final

WAIT_MODERATE: Final = 0.05
"""Share of a step that waits for input, from which input matters. Source: TensorFlow's profiler."""
BUSY: Final = 0.90
"""Share of time from which a worker, a core or a disk counts as busy. Source: SageMaker's rule CPUBottleneck."""
IDLE_CORES: Final = 0.5
"""Idle cores from which another worker would find room. Source: half a core is more than the noise of ours."""
GPU_LOW: Final = 0.70
"""Utilisation of a GPU below which it has room. Source: SageMaker's rule LowGPUUtilization."""
GPU_BUSY: Final = 0.90
CPU_PRESSURE: Final = 0.50
"""Share of time in which some task waits for a core. Source: half of the time, as in SageMaker's rule IOBottleneck."""
FIRST_BYTE_S: Final = 0.03
"""Time to the first byte of S3 in the same region, at most. Source: AWS names 100 to 200 ms for small objects as
usual; stores in the same data centre took 10 to 30 ms in our runs."""
LOOP_BUSY: Final = 0.80
"""Share of a core from which the daemon's main thread makes batches wait for one another."""
THROTTLED: Final = 0.02
"""Share of requests that the store refused. Source: AWS advises to slow down at any; 2 % is beyond single ones."""
HITS_LOW: Final = 0.80
"""Share of shards found in the cache below which it counts as too small, if it also evicts."""
LATENCY_SHARE: Final = 0.50
"""Share of a request before its first byte from which latency counts more than bandwidth."""
SMALL_OBJECT_BYTES: Final = 1_000_000
LARGE_OBJECT_BYTES: Final = 128_000_000
"""Sizes of shards that suit feedd."""
PAUSE_SHARE: Final = 0.10
"""Share of time in pauses, that is in steps of five times the usual length, from which they count."""
CHECKPOINT_BYTES: Final = 1 << 20
"""Bytes that a trainer writes in a pause from which the pause counts as a checkpoint."""
STRAGGLER: Final = 1.5
"""Step time of a rank over the median from which it counts as a straggler. Ranks in step wait for the slowest."""
WRITES_PER_STEP: Final = 4.0
"""Write calls of a trainer in each step from which its output counts: one line of a progress bar takes one or two."""
HOST_BUSY: Final = 0.90
"""Share of a step in which the trainer's main thread computes, from which a GPU waits for the host."""
UNEVEN_CORES: Final = 0.50
"""Difference in utilisation of cores. Source: SageMaker's rule LoadBalancing, for GPUs."""
