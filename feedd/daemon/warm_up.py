"""Fills the cache in advance with the objects a node would read, while there is room."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from feedd.access import AccessRules
from feedd.cache.cache import Cache
from feedd.cache.entry_layout import disk_bytes
from feedd.catalog.large_objects import with_spans
from feedd.catalog.object_heads import with_heads
from feedd.catalog.sidecar_counts import SidecarCounts
from feedd.catalog.sources import Sources
from feedd.catalog.token_windows import token_files, windows_of
from feedd.catalog.wanted_columns import narrowed
from feedd.conversion import text_of
from feedd.daemon.wiring import cache_options, decode_options, node_converter, source_options
from feedd.dataset.listing import Listing
from feedd.dataset.sharding import assign, check_mode
from feedd.errors import BadRecipe, CacheTooSmall, CacheUnavailable, Draining, FeeddError, NotFound, ObjectChanged
from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.formats.tokens import kind_of
from feedd.recipe.recipe import parse_field
from feedd.sessions.column_types import typed
from feedd.sessions.pool_on_demand import PoolOnDemand
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import formed
from feedd.tables.registry import is_columnar
from feedd.units import format_size
from feedd.warming import Amount, WarmProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from feedd.cache.report import CacheStats
    from feedd.catalog.url_listing import Resolved
    from feedd.config import Config
    from feedd.formats.tokens import TokenWindows
    from feedd.protocols import Clock, Recorder
    from feedd.values import FieldRecipe, ObjectRef
    from feedd.warming import WarmSpec

    Tell = Callable[[WarmProgress, FeeddError | None], None]


@dataclass(frozen=True, slots=True)
class WarmBounds:
    """Limits of concurrent fetches; the fetcher bounds the requests below them.

    Attributes:
        objects: maximum number of objects.
        size_bytes: maximum bytes of them. Two objects are always allowed: the end of one and the start of the next.
    """

    objects: int = 16
    size_bytes: int = 512 << 20

    @classmethod
    def of(cls, config: Config) -> WarmBounds:
        """Return the bounds that keep the fetcher of this configuration busy."""
        return cls(config.fetch.parts_in_flight, 2 * config.fetch.bytes_in_flight)


class Warmer:
    """Warms one cache. Objects already in the cache are not touched, and no object is evicted for a warmed one."""

    def __init__(
        self,
        sources: Sources,
        cache: ConvertingCache,
        bounds: WarmBounds,
        access_rules: AccessRules | None = None,
        span_bytes: int = 0,
    ) -> None:
        """Store references to sources and cache, which the caller owns.

        Args:
            sources: where the objects are.
            cache: takes them.
            bounds: limits of concurrent fetches.
            access_rules: what each owner may read; None: everything.
            span_bytes: least size of the spans of large objects; 0: all objects are read whole.
        """
        self._access_rules = access_rules or AccessRules()
        self._span_bytes = span_bytes
        self._sources = sources
        self._cache = cache
        self._bounds = bounds

    async def warm(self, spec: WarmSpec, tell: Tell) -> WarmProgress:
        """Fetch the assignment in its order and return the result.

        Objects that cannot be fetched do not stop the others. A cancelled call leaves the objects that are whole by
        then.

        Args:
            spec: which objects to fetch.
            tell: called after every change, with the error if an object could not be fetched.

        Raises:
            CacheTooSmall: there is no room for all of it, and ``spec.fit`` is not set; nothing was fetched then.
            CacheUnavailable: the directory cannot be written any more.
            Draining: the cache is closing.
            BadRecipe: no session could be opened with these fields.
            Whatever the source raises for URLs that cannot be resolved.
        """
        check_mode(spec.sharding)
        recipe = tuple(parse_field(name, text) for name, text in spec.fields)
        windows = windows_of(recipe)
        access = self._access_rules.of(spec.owner)
        listed = await self._sources.resolve_all(spec.urls, access, shards=windows is not None)
        # ``listed`` is held to the end, because it knows the content of packs
        shards = await self._spans(await self._shards(listed, recipe), listed, windows)
        refs = await CPU.run(_assigned, shards, spec)  # balancing takes microseconds per object
        held = self._cache.entries()
        missing = await CPU.run(_missing, refs, {(entry.url, entry.etag, entry.conversion) for entry in held})
        if not spec.fit:
            _check_space(missing, self._cache.stats)
        total, absent = _amount(refs), _amount(missing)
        present = Amount(total.object_count - absent.object_count, total.size_bytes - absent.size_bytes)
        run = _Run(self._cache, self._bounds.size_bytes, tell, WarmProgress(total, present))
        tell(run.progress, None)
        todo = iter(missing)
        await run_all(run.bring(todo) for _ in range(min(self._bounds.objects, len(missing))))
        return run.progress

    async def _spans(
        self, refs: Sequence[ObjectRef], listed: Resolved, windows: TokenWindows | None
    ) -> Sequence[ObjectRef]:
        """Put spans in the places of large objects.

        Raises:
            BadRecipe: without a recipe, nobody knows where a large file of tokens is cut.
        """
        largest_bytes = await CPU.run(lambda: max((ref.size_bytes for ref in refs), default=0))
        if not self._span_bytes or largest_bytes < 2 * self._span_bytes:
            return refs
        listing = await CPU.run(Listing.of, refs, 0.0)
        listing.named = listed.named
        if windows is None:
            large = next((n for n, ref in enumerate(refs) if self._is_cut_by_recipe(listing, n, ref)), None)
            if large is not None:
                hint = "name the recipe of your fields=: --field tokens=tokens:uint16:2049"
                message = "expected how a large file of tokens is cut into samples, got no recipe for tokens"
                raise BadRecipe(message, object=refs[large].url, hint=hint, stage="cache")
        else:
            files = await CPU.run(token_files, refs, (0,), (windows,), listed.named)
            listing.formats = files.readers
        listing, _ = await with_spans(self._sources, listing, SidecarCounts({}, {}, ()), self._span_bytes)
        return listing.refs

    def _is_cut_by_recipe(self, listing: Listing, number: int, ref: ObjectRef) -> bool:
        is_large = ref.size_bytes >= 2 * self._span_bytes and ref.conversion is None
        return is_large and bool(kind_of(listing.format_of(number), ref.url))

    async def _shards(self, listed: Resolved, recipe: tuple[FieldRecipe, ...]) -> Sequence[ObjectRef]:
        """Return objects as the shards that a session with these fields reads."""
        refs = listed.refs
        with suppress(NotFound, ObjectChanged):  # an error of one object is reported when its turn comes
            refs = await with_heads(self._sources, refs, listed.named)
        refs = await CPU.run(formed, refs, listed.named)
        if not any(is_columnar(ref.conversion) for ref in refs):
            return refs
        listing = await CPU.run(Listing.of, refs, 0.0)
        view = await CPU.run(narrowed, listing.as_listed, [recipe])
        return (await typed(self._cache, view, [recipe])).refs


@asynccontextmanager
async def open_warmer(config: Config, recorder: Recorder, clock: Clock) -> AsyncIterator[Warmer]:
    """Open sources and cache, and nothing else, to warm a cache without a daemon.

    Raises:
        CacheUnavailable: the cache directory cannot be used, or a daemon uses it.
    """
    async with (
        Sources(source_options(config), recorder, clock) as sources,
        PoolOnDemand(decode_options(config), recorder) as pool,
    ):
        converter = node_converter(config, sources.fetcher, pool.make, recorder)
        async with (
            Cache(replace(cache_options(config), bypass_bytes=0), converter, recorder, clock) as disk,
            ConvertingCache(disk, converter) as cache,
        ):
            yield Warmer(sources, cache, WarmBounds.of(config), span_bytes=config.fetch.span_size)


class _Run:
    """One running warm-up."""

    def __init__(self, cache: ConvertingCache, size_bytes: int, tell: Tell, progress: WarmProgress) -> None:
        self.progress = progress
        self._cache = cache
        self._report = tell
        self._budget = ByteBudget(size_bytes)
        self._limit_bytes = max(1, size_bytes // 2)

    async def bring(self, todo: Iterator[ObjectRef]) -> None:
        """Fetch objects from ``todo``, shared with other tasks, until none is left."""
        for ref in todo:
            async with self._budget.reserve(min(ref.size_bytes, self._limit_bytes)):
                await self._bring(ref)

    async def _bring(self, ref: ObjectRef) -> None:
        failure: FeeddError | None = None
        try:
            # Acquiring evicts if it must. It reserves space before its first wait, so an object that fits now evicts
            # nothing.
            async with self._cache.sized(ref) as shard:
                fits = _free_bytes(self._cache.stats) >= disk_bytes(shard)
                if fits:
                    (await self._cache.acquire([ref])).release()
        except (CacheUnavailable, Draining):
            raise  # the next object would fail as well
        except CacheTooSmall:
            fits = False
        except FeeddError as error:
            failure = error
        done = self.progress  # other tasks have made progress meanwhile
        if failure is not None:
            failure.object = failure.object or ref.url
            self.progress = replace(done, failed=done.failed.plus(ref.size_bytes))
        elif fits:
            self.progress = replace(done, warmed=done.warmed.plus(ref.size_bytes))
        else:
            self.progress = replace(done, left_out=done.left_out.plus(ref.size_bytes))
        self._report(self.progress, failure)


def _assigned(listed: Sequence[ObjectRef], spec: WarmSpec) -> list[ObjectRef]:
    sizes = np.fromiter((ref.size_bytes for ref in listed), dtype=np.int64, count=len(listed))
    chosen = assign(sizes, spec.node_count, spec.node_rank, spec.sharding)
    return list(dict.fromkeys(listed[index] for index in chosen.tolist()))


def _missing(refs: Sequence[ObjectRef], held: set[tuple[str, str, str]]) -> list[ObjectRef]:
    return [ref for ref in refs if (ref.url, ref.etag, text_of(ref.conversion)) not in held]


def _amount(refs: Sequence[ObjectRef]) -> Amount:
    return Amount(len(refs), sum(ref.size_bytes for ref in refs))


def _free_bytes(stats: CacheStats) -> int:
    """Return the free disk bytes that no acquirer waits for."""
    if stats.waiting_count:
        return 0
    return stats.limit_bytes - stats.committed_bytes - stats.reserved_bytes


def _check_space(missing: Sequence[ObjectRef], stats: CacheStats) -> None:
    memory_bytes = stats.limit_bytes - stats.committed_bytes
    left_bytes = memory_bytes - stats.reserved_bytes
    needed_bytes = sum(map(disk_bytes, missing))
    if needed_bytes <= memory_bytes:  # the space reserved now may be for these very objects
        return
    fitting = Amount()
    for ref in missing:
        if disk_bytes(ref) <= left_bytes:
            left_bytes -= disk_bytes(ref)
            fitting = fitting.plus(ref.size_bytes)
    raise CacheTooSmall(
        f"the missing objects need {format_size(needed_bytes)} in the cache, beside the "
        f"{format_size(stats.committed_bytes)} already there, but {format_size(max(0, memory_bytes))} are free: "
        f"{fitting.object_count} of {len(missing)} objects would fit",
        hint="raise the cache's size, remove unneeded objects (feedd cache rm), or warm what fits (--fit)",
        stage="cache",
    )
