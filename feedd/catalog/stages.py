"""What a pipeline is made of."""

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
    """Defaults and bounds of sessions.

    Attributes:
        window_shards: shards per shuffle window where the client names none.
        arena_bytes: most memory of all arenas together.
        slots_max: most slots of one session.
        ready_bytes: most bytes of a shard whose images are made ready (see ``sessions.decoded_cache``); 0: none is.
    """

    window_shards: int = 4
    arena_bytes: int = 4 << 30
    slots_max: int = 64
    ready_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Open stages; the pipeline uses them and owns none."""

    sources: Sources
    cache: ConvertingCache
    pool: DecodePool
    recorder: Recorder
    clock: Clock
    inflight: PackReads
    lost: LostObjects = field(default_factory=LostObjects)
