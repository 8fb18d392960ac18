"""One run of ``feedd pack``: freezes the source or reads the frozen one, writes shards, and ends with the manifest."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from feedd.access import FILE_ROOT
from feedd.catalog.urls import parse_url
from feedd.dataset.index_file import INDEX_NAME, Row
from feedd.dataset.index_file import render as render_index
from feedd.dataset.pack_names import MANIFEST_NAME, PLAN_NAME, shard_name
from feedd.dataset.passed_over import PassedOver
from feedd.errors import BadRequest, StoreUnavailable
from feedd.flow.pools import CPU
from feedd.pack.bucket_folder import destination
from feedd.pack.freezing import freeze
from feedd.pack.frozen_source import parse
from feedd.pack.shard_builder import ShardBuilder
from feedd.pack.shard_writers import library_versions, writer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.catalog.sources import Sources
    from feedd.dataset.shard_part import ShardPart
    from feedd.pack.destination import ShardRecord
    from feedd.pack.frozen_source import FrozenSource
    from feedd.pack.pack_options import PackOptions

_IN_FLIGHT_BYTES: Final = 1 << 30
_IN_FLIGHT_MAX: Final = 8
_FINDS_IN_FLIGHT: Final = 32
_VERSION: Final = 1


@dataclass(slots=True)
class Packing:
    """Progress of a run.

    Attributes:
        shard_count: shards of the whole pack.
        mine_count: shards that this run writes.
        done_count: those of them that are there.
        present_count: shards of the whole pack that were there at the end of the run.
        size_bytes: bytes of the shards that are done.
        manifest: the manifest; empty: not all shards are there.
        passed_over: objects of the source that are not packed; known to the run that froze the source.
    """

    shard_count: int = 0
    mine_count: int = 0
    done_count: int = 0
    present_count: int = 0
    size_bytes: int = 0
    manifest: dict[str, Any] = field(default_factory=dict)
    passed_over: PassedOver = field(default_factory=PassedOver)


class PackRun:
    """Packs one source into one destination, whole or in part. May run many times, at once or one after another.

    Args:
        sources: reads the objects and writes to buckets.
        options: what the user asked for.
        target_url: URL of the destination.
        report: called after each shard.
    """

    def __init__(
        self, sources: Sources, options: PackOptions, target_url: str, report: Callable[[Packing], object]
    ) -> None:
        self.progress = Packing()
        self._sources = sources
        self._options = options
        self._records: dict[int, ShardRecord] = {}
        self._writer = writer_of(options.format)
        self._target = destination(sources, target_url)
        self._report = report
        _check_apart(options.source, self._target.url)

    @property
    def url(self) -> str:
        """URL of the destination."""
        return self._target.url

    async def open(self) -> FrozenSource:
        """Return the frozen source of the destination; if there is none yet, freeze the source.

        Raises:
            BadRequest: the destination holds another pack, or the source cannot be packed.
            NotFound, PermissionDenied, StoreUnavailable: the answer of a store.
        """
        data = await self._target.read(PLAN_NAME)
        if data is None:
            data = await self._freeze()
        frozen = await CPU.run(parse, data, f"{self._target.url}{PLAN_NAME}")
        _check_same(self._options, frozen, self._target.url)
        self.progress.shard_count = frozen.shard_count
        return frozen

    async def make(self, frozen: FrozenSource, part: ShardPart) -> None:
        """Write the shards of a part that are not there yet.

        Raises:
            What ``ShardBuilder.build`` raises, for the first shard that fails.
        """
        cores = len(os.sched_getaffinity(0))
        builder = ShardBuilder(self._sources, self._target, frozen, self._writer)
        left = iter(self.begin(frozen, part))

        async def work() -> None:
            for shard in left:  # the iterator is shared: each task takes the next shard
                self.note(shard, await builder.build(shard))

        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, min(cores + 1, _IN_FLIGHT_MAX, _IN_FLIGHT_BYTES // frozen.largest_bytes))):
                group.create_task(work())

    def begin(self, frozen: FrozenSource, part: ShardPart) -> range:
        """Return the numbers of the shards of a part, and report their count."""
        mine = part.of(frozen.shard_count)
        self.progress.mine_count = len(mine)
        self._report(self.progress)
        return mine

    def note(self, shard: int, record: ShardRecord) -> None:
        """Count a shard that is there."""
        self._records[shard] = record
        self.progress.done_count += 1
        self.progress.size_bytes += record.size_bytes
        self._report(self.progress)

    async def finish(self, frozen: FrozenSource) -> None:
        """Write indexes and manifest if all shards are there; the last part to end finds them all."""
        names = [shard_name(number, self._writer.extension) for number in range(frozen.shard_count)]
        missing = set(names) - await self._target.names()
        self.progress.present_count = len(names) - len(missing)
        if missing:
            return
        others = iter([number for number in range(frozen.shard_count) if number not in self._records])

        async def find() -> None:
            for number in others:
                found = await self._target.find(names[number], frozen.digest)
                if found is not None:
                    self._records[number] = found

        async with asyncio.TaskGroup() as group:
            for _ in range(_FINDS_IN_FLIGHT):
                group.create_task(find())
        self.progress.present_count = len(self._records)
        if len(self._records) < frozen.shard_count:  # the shard is there, and its record is still being written
            return
        records = [self._records[number] for number in range(frozen.shard_count)]
        rows = [Row(name, one.size_bytes, one.etag, one.samples) for name, one in zip(names, records, strict=True)]
        await self._target.replace(INDEX_NAME, render_index(rows))
        for name, data in self._writer.sidecars(names, records, frozen.fields).items():
            await self._target.replace(name, data)
        self.progress.manifest = manifest(frozen, names, records)
        await self._target.replace(MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(self.progress.manifest)))
        await self._target.finish()

    async def _freeze(self) -> bytes:
        """List the source and write the plan; return the plan that is there, which another process may have written."""
        if PLAN_NAME not in (taken := await self._target.names()) and taken:
            raise BadRequest(
                f"expected an empty destination, got {len(taken)} objects, {min(taken)!r} first",
                object=self._target.url,
                stage="pack",
            )
        options = self._options
        resolved = await self._sources.resolve_all([options.source])
        self.progress.passed_over = resolved.passed_over
        frozen = await CPU.run(freeze, resolved, options, self._writer, library_versions(options))
        data = await CPU.run(frozen.render)
        if await self._target.create(PLAN_NAME, data):
            return data
        there = await self._target.read(PLAN_NAME)
        if there is None:
            raise StoreUnavailable("the plan was removed while it was read", object=f"{self._target.url}{PLAN_NAME}")
        return there


def manifest(frozen: FrozenSource, names: Sequence[str], records: Sequence[ShardRecord]) -> dict[str, Any]:
    """Return the manifest of a whole pack. It depends on the frozen source alone."""
    options = frozen.options
    return {
        "version": _VERSION,
        "format": options.format,
        "samples": frozen.fields.sample_count,
        "bytes": sum(one.size_bytes for one in records),
        "source": {
            "url": options.source,
            "objects": len(frozen.members.sizes),
            "bytes": frozen.source_bytes,
            "plan_sha256": frozen.digest,
        },
        "options": {
            "shard_size": options.shard_bytes,
            "resize": options.resize,
            "quality": options.quality if options.resize else None,
            "seed": options.seed,
            "labels": options.labels,
        },
        "libraries": dict(frozen.versions),
        "classes": list(frozen.classes),
        "shards": [
            {"name": name, "samples": one.samples, "bytes": one.size_bytes, "sha256": one.sha256}
            for name, one in zip(names, records, strict=True)
        ],
    }


def normal_source(url: str) -> str:
    """Return a URL that is the same for all ways to write the same folder or prefix."""
    location = parse_url(url)
    if location.manifest or location.format:
        message = "expected a folder or prefix of objects to pack, got a manifest or a format"
        raise BadRequest(message, object=url, stage="pack")
    return f"{location.root}{location.key.rstrip('/')}" if location.root == FILE_ROOT else url


def _check_apart(source: str, target: str) -> None:
    """Check that the shards are not part of the source: a later reader of the source would meet them."""
    inside = f"{source.removeprefix(FILE_ROOT)}/" if source.startswith(FILE_ROOT) else source
    if target.startswith(inside):
        raise BadRequest(
            "expected a destination outside of the source, got one inside",
            object=target,
            hint=f"name a folder that does not begin with {inside}",
            stage="pack",
        )


def _check_same(wanted: PackOptions, frozen: FrozenSource, url: str) -> None:
    """Check that the destination was begun with the same options and libraries.

    Raises:
        BadRequest: it was not.
    """
    there = frozen.options if wanted.labels != "auto" else replace(frozen.options, labels="auto")
    differing = [name for name, value in asdict(wanted).items() if value != getattr(there, name)]
    versions = library_versions(wanted)
    if not differing and versions == dict(frozen.versions):
        return
    if differing:
        name = differing[0]
        expected, got = f"{name} {getattr(there, name)!r}", f"{getattr(wanted, name)!r}"
    else:
        expected, got = str(frozen.versions), str(versions)
    raise BadRequest(
        f"expected {expected}, with which this pack was begun, got {got}",
        object=url,
        hint="name another destination for another pack",
        stage="pack",
    )
