"""Looks at a node that never was: two jobs, their ranks, a cache, a log and bad samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedd import metrics
from feedd.diagnosis.node import Look
from feedd.wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_SIZE = 32
STEPS = 1000


def session(rank: int, at_s: float, *, steps_per_s: float = 10.0, wait: float = 0.0, **facts: Any) -> pb.SessionEntry:
    """Return a session whose trainer has taken batches for ``at_s`` seconds."""
    steps = round(at_s * steps_per_s)
    known: dict[str, Any] = {
        "id": f"{rank:08x}",
        "owner": "uid 1000",
        "urls": ["s3://bucket/train/"],
        "slots": 8,
        "ready": 2,
        "leases": 1,
        "age_s": at_s + 5,
        "times": pb.TrainerTimes(wall_s=at_s, wait_s=at_s * wait, steps=steps, device="cuda:0"),
        "rank": rank,
        "world_size": 4,
        "epoch": 1,
        "step": steps % STEPS,
        "steps": STEPS,
        "batch_size": BATCH_SIZE,
        "consumers": 1,
        "assigned_bytes": 1000,
        "waits_for": "decoding" if wait else "",
    }
    return pb.SessionEntry(**known | facts)


def answer(at_s: float, sessions: Sequence[pb.SessionEntry], **facts: Any) -> pb.ObserveResponse:
    """Return what a daemon answers at ``at_s`` with two workers that are busy all the time."""
    amounts = {
        metrics.DECODE_WORKERS: 2.0,
        metrics.DECODE_BUSY: 2 * at_s,
        metrics.DECODE_SAMPLES: 1000 * at_s,
        metrics.SERVE_BATCHES: 30 * at_s,
        metrics.SERVE_BATCH_BYTES: 3e6 * at_s,
        metrics.SOURCE_BYTES: 5e6 * at_s,
        metrics.DECODE_BAD_SAMPLES: 3.0,
    }
    stats = pb.StatsResponse(
        state="ready",
        version="1.2.3",
        daemon_id="d1",
        uptime_s=at_s,
        samples=[pb.Sample(name=metric.name, value=value) for metric, value in amounts.items()],
        cache=pb.CacheState(directory="/cache", limit_bytes=2000, committed_bytes=500, reserved_bytes=100, entries=5),
        lanes=1,
        pid=1,
    )
    folders = [pb.CacheFolder(url="s3://bucket/train/", entries=5, bytes=500, pinned_bytes=200)]
    known: dict[str, Any] = {"stats": stats, "sessions": sessions, "folders": folders}
    return pb.ObserveResponse(**known | facts)


def look(at_s: float, ranks: int = 2, *, wait: float = 0.0, **facts: Any) -> Look:
    """Return a look at a node of one daemon and one job."""
    return Look(at_s, [answer(at_s, [session(rank, at_s, wait=wait) for rank in range(ranks)], **facts)])
