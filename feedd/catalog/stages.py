"""The open stages that a pipeline uses, and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.catalog.lost_objects import LostObjects

if TYPE_CHECKING:
    from feedd.catalog.pack_reads import PackReads
    from feedd.catalog.sources import Sources
    from feedd.converting.converting_cache import ConvertingCache
    from feedd.protocols import Clock, Recorder
    from feedd.workers.worker_pool import DecodePool


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Defaults and limits of sessions.

    Attributes:
        window_shards: shards per shuffle window if the client names no window.
        arena_bytes: maximum memory of all arenas together.
        slots_max: maximum slots of one session.
        ready_bytes: size limit of a shard with predecoded images (see ``sessions.decoded_cache``); 0: no predecoding.
    """

    window_shards: int = 4
    arena_bytes: int = 4 << 30
    slots_max: int = 64
    ready_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Open stages; the pipeline uses them but does not own them."""

    sources: Sources
    cache: ConvertingCache
    pool: DecodePool
    recorder: Recorder
    clock: Clock
    inflight: PackReads
    lost: LostObjects = field(default_factory=LostObjects)
