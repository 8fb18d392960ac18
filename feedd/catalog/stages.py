"""The open stages that a pipeline uses, and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.access import AccessRules
from feedd.catalog.lost_objects import LostObjects

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.catalog.pack_reads import PackReads
    from feedd.catalog.sources import Sources
    from feedd.flow.trace_log import TraceLog
    from feedd.protocols import Clock, Recorder
    from feedd.tables.cache import ConvertingCache
    from feedd.workers.pool import DecodePool


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Defaults and limits of sessions.

    Attributes:
        window_shards: shards per shuffle window if the client names no window.
        arena_bytes: maximum memory of all arenas together.
        arena_per_owner_bytes: maximum memory of the arenas of one owner; 0: ``arena_bytes``.
        slots_max: maximum slots of one session.
        ready_bytes: size limit of a shard with predecoded images (see ``sessions.decoded_cache``); 0: no predecoding.
        readahead_bytes: size of the shards that sessions prefetch if shards are small (see ``EpochAccess.wishes``).
        access_rules: what each owner may read.
        channel_root: folder of a SageMaker job; None: see ``catalog.channel_urls``.
        span_bytes: least size of the spans of large objects; 0: all objects are read whole.
    """

    window_shards: int = 4
    arena_bytes: int = 4 << 30
    arena_per_owner_bytes: int = 0
    slots_max: int = 64
    ready_bytes: int = 0
    readahead_bytes: int = 0
    access_rules: AccessRules = field(default_factory=AccessRules)
    channel_root: Path | None = None
    span_bytes: int = 0


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
    traces: TraceLog | None = None
