"""Counts the samples of a dataset: each shard once; shards that are already known are not read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from feedd.catalog.braces import expand, split
from feedd.catalog.late_fields import known_fields, late_fields
from feedd.catalog.urls import parse_url
from feedd.dataset.index_file import INDEX_NAME, Row, folder_of, known
from feedd.dataset.pack_layout import is_pack
from feedd.dataset.passed_over import PassedOver
from feedd.dataset.shard_part import WHOLE
from feedd.errors import BadRequest, FeeddError
from feedd.flow.pools import CPU
from feedd.notices import Amount, NoticeKind, notices_of, summed
from feedd.recipe.left_out import LeftOutFields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from feedd.dataset.listing import Listing
    from feedd.dataset.shard_part import ShardPart
    from feedd.notices import Notice
    from feedd.prepare.index_writer import IndexTarget
    from feedd.prepare.manifest_writer import Difference, Written
    from feedd.sessions.opening import Pipeline
    from feedd.values import ObjectRef

_log = structlog.get_logger("feedd.prepare")
_SAVE_EVERY_S = 60.0  # a crash loses at most this much work, and as much as ten saves take
_SAVES_SHARE = 0.1


@dataclass(slots=True)
class Counting:
    """Progress of a count.

    Attributes:
        shard_count: shards of the dataset.
        size_bytes: bytes of the dataset.
        known_count: shards that were known before, or counted by another run meanwhile.
        done_count: shards that are known now.
        done_bytes: bytes of these shards.
        counted_bytes: bytes of the shards that this run has counted.
        sample_count: samples in these shards.
        failures: one error per shard that could not be counted.
        passed_over: objects in the folder that are not data.
        fields: fields of the read shards that are left out if the trainer names no fields.
        late: fields that appear only in later shards than the first, as far as both were read.
    """

    shard_count: int = 0
    size_bytes: int = 0
    known_count: int = 0
    done_count: int = 0
    done_bytes: int = 0
    counted_bytes: int = 0
    sample_count: int = 0
    failures: list[FeeddError] = field(default_factory=list)
    passed_over: PassedOver = field(default_factory=PassedOver)
    fields: LeftOutFields = field(default_factory=LeftOutFields)
    late: Amount = field(default_factory=Amount)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices on data that is left out or changed, as far as the data was listed and read."""
        late = {NoticeKind.LATE_FIELDS: self.late}
        return notices_of(summed([self.passed_over.reasons, self.fields.amounts, late]))


def index_url(url: str) -> str:
    """Return the URL of a folder's index, which lies in the folder.

    Raises:
        BadRequest: the URL is not a folder. The index of some objects must not replace the index of the whole folder.
    """
    if len(split(url)) > 1 or expand(url) != [url]:
        raise BadRequest("expected one folder to index, got a list of URLs", object=url, hint="index each folder alone")
    location = parse_url(url)
    folder = not location.key or location.key.endswith("/")
    local = location.root == "file://" and Path(location.key).is_dir()
    if location.manifest or location.frozen or not (folder or local):
        raise BadRequest("expected a folder that ends with a slash, got an object or a manifest", object=url)
    key = location.key if folder else f"{location.key}/"
    base = location.root if location.root == "file://" else f"{location.root}/"
    return f"{base}{folder_of(key)}{INDEX_NAME}"


class Counter:
    """Counts one dataset: ``open``, ``count``, ``save``. After an interruption the counts so far can be saved.

    Several counters may count the same dataset at once: at each save they take over the counts of others.

    Args:
        pipeline: open stages with their own cache.
        url: prefix or folder.
        kept: the index to write.
        add_counts: called after each shard.
        part: which shards to count; others may be counted by other runs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        kept: IndexTarget,
        add_counts: Callable[[Counting], object],
        part: ShardPart = WHOLE,
    ) -> None:
        self.progress = Counting()
        self._pipeline = pipeline
        self._url = url
        self._target = kept
        self._report = add_counts
        self._folder = folder_of(parse_url(index_url(url)).key)
        self._root = parse_url(url).root
        self._listing: Listing | None = None
        self._done: set[int] = set()
        self._first: tuple[int, frozenset[str]] | None = None  # the first read shard with samples, and its fields
        self._part = part

    @property
    def is_open(self) -> bool:
        """Whether the dataset is listed."""
        return self._listing is not None

    async def open(self) -> None:
        """List the dataset, and read which shards the index already knows.

        Raises:
            BadRequest: the file to write is not an index of this data.
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = await self._pipeline.catalog.fresh((self._url,))
        try:
            rows = await self._target.read()
        except ValueError as error:
            if not self._is_sidecar:  # a file with the index's own name may be replaced, but not any named file
                raise _no_index(self._target.url, str(error)) from error
            rows = []
        exact = await CPU.run(self._known, listing, rows)
        ours = await CPU.run(_rows, listing.refs, exact, self._folder)
        if rows and not exact and not self._is_sidecar:
            raise _no_index(
                self._target.url, f"expected counts of {self._url}, got counts of {len(rows)} other objects"
            )
        self._target.drop(frozenset(row for row in rows if ours.get(row.key) != row))
        self._listing = listing
        self.progress.passed_over = listing.passed_over
        self.progress.shard_count, self.progress.size_bytes = len(listing.refs), int(listing.sizes.sum())
        listing.counts.update(exact)
        self._knew(listing.counts)
        self._report(self.progress)

    @property
    def left_count(self) -> int:
        """Shards of the part whose samples are not known."""
        listing = self._opened()
        return sum(shard not in listing.counts for shard in self._part.of(len(listing.refs)))

    async def freeze(self) -> Written:
        """Write the dataset as a frozen manifest; all its samples must be known.

        Raises:
            Unsupported: the dataset cannot be frozen.
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        # Every command imports this module, and few need the columns.
        from feedd.prepare.manifest_writer import freeze  # noqa: PLC0415 - see above

        return await freeze(self._pipeline.stages.sources, parse_url(self._url), self._folder, self._opened())

    async def compare(self) -> Difference | None:
        """Compare the newest version of the folder's manifest with its objects; None: there is no version.

        Raises:
            BadRequest: the object is no manifest, damaged, or of another version.
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        from feedd.prepare.manifest_writer import difference  # noqa: PLC0415 - see ``freeze``

        return await difference(self._pipeline.stages.sources, parse_url(self._url), self._folder, self._opened())

    async def count(self, at_once: int) -> None:
        """Count every unknown shard and save from time to time. Failures are kept in the progress.

        Args:
            at_once: shards to read at the same time.
        """
        listing = self._opened()
        todo = iter([shard for shard in self._part.of(len(listing.refs)) if shard not in listing.counts])
        saving = _Saving()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._work(listing, todo, saving))
        if self._first is not None and not any(listing.counts.get(shard) for shard in range(self._first[0])):
            self.progress.late = late_fields(listing.as_listed, [self._first[1]], unread=False)

    async def save(self) -> None:
        """Write the known counts, and take over counts that other runs have written.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = self._opened()
        ours = await CPU.run(_rows, listing.refs, dict(listing.counts), self._folder)
        news = await self._target.save(ours)
        if news:
            found = await CPU.run(self._known, listing, news)
            fresh = {shard: count for shard, count in found.items() if shard not in listing.counts}
            listing.counts.update(fresh)
            self._knew(fresh)
            self._report(self.progress)

    @property
    def _is_sidecar(self) -> bool:
        return self._target.url == index_url(self._url)

    async def _work(self, listing: Listing, todo: Iterator[int], saving: _Saving) -> None:
        for shard in todo:  # the iterator is shared: each task takes the next shard
            if shard in listing.counts:  # another run has counted it
                continue
            try:
                found = await self._pipeline.catalog.index(listing.as_listed, shard, outline=True)
            except FeeddError as error:
                error.object = error.object or listing.refs[shard].url
                self.progress.failures.append(error)
            else:
                self.progress.fields.add(found)
                if found.sample_count and (self._first is None or shard < self._first[0]):
                    self._first = shard, known_fields(found)
                if self._count_done(shard):
                    self.progress.counted_bytes += listing.refs[shard].size_bytes
            self._report(self.progress)
            if saving.due():
                try:
                    await self.save()
                except FeeddError as error:  # only the last save must succeed
                    _log.warning("the index cannot be saved now", reason=str(error))
                finally:
                    saving.over()

    def _opened(self) -> Listing:
        assert self._listing is not None, "not open"
        return self._listing

    def _known(self, listing: Listing, rows: Sequence[Row]) -> dict[int, int]:
        return known(listing.refs, {(self._root, self._folder): rows})

    def _knew(self, counts: Mapping[int, int]) -> None:
        for shard in counts:
            self.progress.known_count += self._count_done(shard)

    def _count_done(self, shard: int) -> bool:
        """Add a shard to the progress; return False if another run has counted it meanwhile."""
        if shard in self._done:
            return False
        listing, progress = self._opened(), self.progress
        self._done.add(shard)
        progress.done_count += 1
        progress.done_bytes += listing.refs[shard].size_bytes
        progress.sample_count += listing.counts[shard]
        return True


class _Saving:
    """Decides when to save; only one task saves at a time. Saving takes a tenth of the time at most."""

    def __init__(self) -> None:
        self._last_s = self._began_s = time.monotonic()
        self._took_s = 0.0
        self._busy = False

    def due(self) -> bool:
        """Return whether the caller should save now; if so, it must call ``over`` afterwards."""
        if self._busy or time.monotonic() - self._last_s <= _SAVE_EVERY_S + self._took_s / _SAVES_SHARE:
            return False
        self._busy, self._began_s = True, time.monotonic()
        return True

    def over(self) -> None:
        """Record that a save has ended, with or without success."""
        self._busy, self._last_s = False, time.monotonic()
        self._took_s = self._last_s - self._began_s


def _rows(refs: Sequence[ObjectRef], counts: Mapping[int, int], folder: str) -> dict[str, Row]:
    found = (
        Row(refs[n].key.removeprefix(folder), refs[n].size_bytes, refs[n].etag, c)
        for n, c in counts.items()
        if not is_pack(refs[n])  # the listing tells the samples of packs
    )
    return {row.key: row for row in found}


def _no_index(url: str, reason: str) -> BadRequest:
    return BadRequest(reason, object=url, hint="name another file, or remove this file")
