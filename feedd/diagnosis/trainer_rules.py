"""Rules for jobs that do not wait for input: what else takes their time. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from feedd.diagnosis import thresholds as limits
from feedd.diagnosis.finding import Evidence, Finding, Knob

if TYPE_CHECKING:
    from feedd.diagnosis.input_rules import Rule
    from feedd.diagnosis.window import Window

_RANKS_MIN: Final = 3


def straggler(window: Window) -> Finding | None:
    """One rank's own steps take longer than those of the others."""
    steps_s = [rank.step_s for rank in window.ranks if rank.steps]
    if len(steps_s) < _RANKS_MIN:
        return None
    ratio = max(steps_s) / (statistics.median(steps_s) or 1.0)
    if ratio < limits.STRAGGLER:
        return None
    slowest = max(window.ranks, key=lambda rank: rank.step_s)
    evidence = Evidence(f"step of rank {slowest.rank} over the median step", ratio, limits.STRAGGLER, "times")
    return Finding("straggler", (evidence,), f"Look at the machine and the code of rank {slowest.rank}.")


def pauses(window: Window) -> Finding | None:
    """Some steps take several times as long as the others."""
    if window.pause < limits.PAUSE_SHARE:
        return None
    written = max((rank.written_bytes or 0 for rank in window.ranks), default=0)
    evidence = Evidence("time in pauses", window.pause, limits.PAUSE_SHARE, "share")
    factor = 1 / (1 - min(window.pause, 0.99))
    if written >= limits.CHECKPOINT_BYTES:
        wrote = Evidence("bytes that a trainer wrote", written, limits.CHECKPOINT_BYTES, "bytes")
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
    if calls / steps < limits.WRITES_PER_STEP or calls / trainer_s < limits.WRITES_PER_S:
        return None
    in_step = Evidence("write calls of the trainer in a step", calls / steps, limits.WRITES_PER_STEP, "calls")
    in_second = Evidence("write calls of the trainer in a second", calls / trainer_s, limits.WRITES_PER_S, "calls")
    advice = "Log metrics and progress every 10 to 100 steps."
    return Finding("logging", (in_step, in_second), advice, Knob("log interval", "", "50"))


def communication(window: Window) -> Finding | None:
    """The node sends as fast as its network link can."""
    if window.link_sent is None or window.link_sent < limits.LINK_BUSY:
        return None
    evidence = Evidence(
        "share of the network link's rate that the node sends", window.link_sent, limits.LINK_BUSY, "share"
    )
    advice = "Send less: gradients in bfloat16, gradient accumulation, larger buckets. Or use a faster network (EFA)."
    return Finding("communication", (evidence,), advice)


def gpu(window: Window) -> Finding | None:
    """What the GPU's utilisation tells."""
    busy = window.gpu_busy
    if busy is None:
        return None
    evidence = Evidence("time that the GPU is busy", busy, limits.GPU_LOW, "share")
    if busy >= limits.GPU_BUSY:
        return Finding("compute_bound", (evidence,), "The step itself takes the time: see a profile of the model.")
    if busy >= limits.GPU_LOW:
        return None
    host = max((rank.host_busy or 0.0 for rank in window.ranks), default=0.0)
    if host >= limits.HOST_BUSY:
        computes = Evidence("time that a trainer's main thread computes", host, limits.HOST_BUSY, "share")
        advice = "Move transforms, losses and metrics to the GPU, and avoid .item() in each step."
        return Finding("host_compute", (evidence, computes), advice)
    return Finding("small_batch", (evidence,), "Use larger batches, or torch.compile with CUDA graphs.")


def healthy(window: Window) -> Finding:
    """Nothing stands out."""
    evidence = Evidence("time that the trainer waits for a batch", window.wait, limits.WAIT_MODERATE, "share")
    return Finding("healthy", (evidence,), "feedd delivers in time. A faster step would still get its data.")


TRAINER_RULES: Final[tuple[Rule, ...]] = (straggler, pauses, output, communication, gpu, healthy)
