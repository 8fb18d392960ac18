"""Filling the cache ahead of its use: what a node would read, brought there while there is room, and nothing more."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.cache.caches import DiskCache
from feedd.cache.entry_layout import disk_bytes
from feedd.catalog.object_heads import with_heads
from feedd.catalog.sources import Sources
from feedd.catalog.wanted_columns import narrowed
from feedd.convert.conversion_registry import COLUMNAR, split
from feedd.converting.converter import formed
from feedd.converting.converting_cache import ConvertingCache
from feedd.daemon.wiring import cache_options, decode_options, node_maker, source_options
from feedd.dataset.listing import Listing
from feedd.dataset.sharding import assign, check_mode
from feedd.errors import CacheTooSmall, CacheUnavailable, Draining, FeeddError, NotFound, ObjectChanged
from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.recipe.recipe import parse_field
from feedd.sessions.column_types import typed
from feedd.sessions.pool_on_demand import PoolOnDemand
from feedd.units import format_size
from feedd.warming import Amount, WarmProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from feedd.cache.cache_report import CacheStats
    from feedd.catalog.sources import Resolved
    from feedd.config import Config
    from feedd.protocols import Clock, Recorder
    from feedd.values import ObjectRef
    from feedd.warming import WarmSpec

    Tell = Callable[[WarmProgress, FeeddError | None], None]


@dataclass(frozen=True, slots=True)
class WarmBounds:
    """How much is brought at one time; the fetcher bounds requests below that.

    Attributes:
        objects: most objects, of whatever size.
        size_bytes: most bytes of them, but two objects are always let through: the end of one and the next's start.
    """

    objects: int = 16
    size_bytes: int = 512 << 20

    @classmethod
    def of(cls, config: Config) -> WarmBounds:
        """Return what keeps the fetcher of this configuration busy."""
        return cls(config.fetch.parts_in_flight, 2 * config.fetch.bytes_in_flight)


class Warmer:
    """Warms one cache. An object there already is not touched, and no other one has to go for what is warmed."""

    def __init__(self, sources: Sources, cache: ConvertingCache, bounds: WarmBounds) -> None:
        """Bind; nothing is owned."""
        self._sources = sources
        self._cache = cache
        self._bounds = bounds

    async def warm(self, spec: WarmSpec, tell: Tell) -> WarmProgress:
        """Bring the assignment, in its order; return what became of it.

        Objects that cannot be had do not keep the others away. Cancelled it leaves what is whole by then.

        Args:
            spec: what is meant.
            tell: called after every change, with the error where an object could not be had.

        Raises:
            CacheTooSmall: there is no room for all of it, and ``spec.fit`` is not set; nothing was fetched then.
            CacheUnavailable: the directory cannot be written any more.
            Draining: the cache is being closed.
            BadRecipe: fields that no session could be opened with.
            Whatever the source raises for URLs that cannot be resolved.
        """
        check_mode(spec.sharding)
        listed = await self._sources.resolve_all(spec.urls)  # held to the end: it says what is in packs
        shards = await self._shards(listed, spec)
        refs = await CPU.run(_assigned, shards, spec)  # balancing takes microseconds per object
        held = self._cache.entries()
        missing = await CPU.run(_missing, refs, {(entry.url, entry.etag, entry.form) for entry in held})
        if not spec.fit:
            _check_room(missing, self._cache.stats)
        total, absent = _amount(refs), _amount(missing)
        present = Amount(total.object_count - absent.object_count, total.size_bytes - absent.size_bytes)
        run = _Run(self._cache, self._bounds.size_bytes, tell, WarmProgress(total, present))
        tell(run.progress, None)
        todo = iter(missing)
        await run_all(run.bring(todo) for _ in range(min(self._bounds.objects, len(missing))))
        return run.progress

    async def _shards(self, listed: Resolved, spec: WarmSpec) -> tuple[ObjectRef, ...]:
        """Return objects as the shards that a session with these fields reads."""
        refs = listed.refs
        with suppress(NotFound, ObjectChanged):  # of one object, that is told when its turn comes
            refs = await with_heads(self._sources, refs, listed.named)
        refs = await CPU.run(formed, refs, listed.named)
        if not any(split(ref.form)[0] in COLUMNAR for ref in refs):
            return refs
        recipes = [tuple(parse_field(name, text) for name, text in spec.fields)]
        listing = await CPU.run(Listing.of, refs, 0.0)
        view = await CPU.run(narrowed, listing, recipes)
        return (await typed(self._cache, view, recipes)).refs


@asynccontextmanager
async def open_warmer(config: Config, recorder: Recorder, clock: Clock) -> AsyncIterator[Warmer]:
    """Open sources and cache, nothing else, for a warming without a daemon.

    Raises:
        CacheUnavailable: the cache directory cannot be used, or a daemon uses it.
    """
    async with (
        Sources(source_options(config), recorder, clock) as sources,
        PoolOnDemand(decode_options(config), recorder) as pool,
    ):
        converter = node_maker(config, sources, pool.make, recorder)
        async with (
            DiskCache(cache_options(config), converter, recorder, clock) as disk,
            ConvertingCache(disk, converter) as cache,
        ):
            yield Warmer(sources, cache, WarmBounds.of(config))


class _Run:
    """One warming under way."""

    def __init__(self, cache: ConvertingCache, size_bytes: int, tell: Tell, progress: WarmProgress) -> None:
        self.progress = progress
        self._cache = cache
        self._tell = tell
        self._budget = ByteBudget(size_bytes)
        self._share_bytes = max(1, size_bytes // 2)

    async def bring(self, todo: Iterator[ObjectRef]) -> None:
        """Take objects from ``todo``, which others take from too, until none is left."""
        for ref in todo:
            async with self._budget.reserve(min(ref.size_bytes, self._share_bytes)):
                await self._bring(ref)

    async def _bring(self, ref: ObjectRef) -> None:
        failure: FeeddError | None = None
        try:
            # Acquiring evicts where it must; it reserves before it first waits, so what fits now does not have to.
            async with self._cache.sized(ref) as shard:
                fits = _room_bytes(self._cache.stats) >= disk_bytes(shard)
                if fits:
                    (await self._cache.acquire([ref])).release()
        except (CacheUnavailable, Draining):
            raise  # the next object would fare no better
        except CacheTooSmall:
            fits = False
        except FeeddError as error:
            failure = error
        done = self.progress  # others have gone on meanwhile
        if failure is not None:
            failure.object = failure.object or ref.url
            self.progress = replace(done, failed=done.failed.plus(ref.size_bytes))
        elif fits:
            self.progress = replace(done, warmed=done.warmed.plus(ref.size_bytes))
        else:
            self.progress = replace(done, left_out=done.left_out.plus(ref.size_bytes))
        self._tell(self.progress, failure)


def _assigned(listed: Sequence[ObjectRef], spec: WarmSpec) -> list[ObjectRef]:
    sizes = np.fromiter((ref.size_bytes for ref in listed), dtype=np.int64, count=len(listed))
    chosen = assign(sizes, spec.node_count, spec.node_rank, spec.sharding)
    return list(dict.fromkeys(listed[index] for index in chosen.tolist()))


def _missing(refs: Sequence[ObjectRef], held: set[tuple[str, str, str]]) -> list[ObjectRef]:
    return [ref for ref in refs if (ref.url, ref.etag, ref.form) not in held]


def _amount(refs: Sequence[ObjectRef]) -> Amount:
    return Amount(len(refs), sum(ref.size_bytes for ref in refs))


def _room_bytes(stats: CacheStats) -> int:
    """Disk bytes that nobody has, and nobody waits for."""
    if stats.waiting_count:
        return 0
    return stats.limit_bytes - stats.committed_bytes - stats.reserved_bytes


def _check_room(missing: Sequence[ObjectRef], stats: CacheStats) -> None:
    room_bytes = stats.limit_bytes - stats.committed_bytes
    left_bytes = room_bytes - stats.reserved_bytes
    needed_bytes = sum(map(disk_bytes, missing))
    if needed_bytes <= room_bytes:  # what is reserved now may well be for these very objects
        return
    fitting = Amount()
    for ref in missing:
        if disk_bytes(ref) <= left_bytes:
            left_bytes -= disk_bytes(ref)
            fitting = fitting.plus(ref.size_bytes)
    raise CacheTooSmall(
        f"expected room for {format_size(needed_bytes)} in the cache beside {format_size(stats.committed_bytes)} that "
        f"is there, got {format_size(max(0, room_bytes))}: {fitting.object_count} of {len(missing)} objects would fit",
        hint="raise the cache's size, remove what is not needed (feedd cache rm), or take what fits (--fit)",
        stage="cache",
    )
