"""Counts the samples of a dataset: each shard once; shards that are already known are not read."""

from __future__ import annotations

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
from feedd.prepare.part_files import PartFiles
from feedd.prepare.shard_count import CountJob, ShardCount, count_each
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
    """Counts one dataset: ``open``, ``count``, ``save``, ``finish``. ``save`` may also follow an interruption.

    Several counters may count the same dataset at once. Those of one part share a file: at each save they take over
    the counts of others.

    Args:
        pipeline: open stages with their own cache.
        url: prefix or folder.
        target: the index to write.
        report: called after each shard.
        part: which shards to count; others may be counted by other runs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        target: IndexTarget,
        report: Callable[[Counting], object],
        part: ShardPart = WHOLE,
    ) -> None:
        self.progress = Counting()
        self._pipeline = pipeline
        self._url = url
        self._index = target
        self._report = report
        self._folder = folder_of(parse_url(index_url(url)).key)
        self._root = parse_url(url).root
        self._part = part
        self._parts = PartFiles(pipeline.stages.sources, self._root, self._folder)
        self._target = target  # of the saves of this run: the index, or the file of a part
        self._listing: Listing | None = None
        self._done: set[int] = set()
        self._first: tuple[int, frozenset[str]] | None = None  # the first read shard with samples, and its fields
        self._saving = _Saving()

    @property
    def is_open(self) -> bool:
        """Whether the dataset is listed."""
        return self._listing is not None

    @property
    def target_url(self) -> str:
        """URL of the object that holds the counts: the file of the part until the whole index is written."""
        return self._target.url

    @property
    def listing(self) -> Listing:
        """The dataset, once it is open."""
        assert self._listing is not None, "not open"
        return self._listing

    async def open(self) -> None:
        """List the dataset, and read which shards the index or the file of the part already knows.

        Raises:
            BadRequest: the file to write is not an index of this data.
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = await self._pipeline.catalog.fresh((self._url,))
        if self._has_file:
            self._target = self._parts.target(self._part)
        exact = await self._read(listing)
        self._listing = listing
        self.progress.passed_over = listing.passed_over
        self.progress.shard_count, self.progress.size_bytes = len(listing.refs), int(listing.sizes.sum())
        listing.counts.update(exact)
        self._knew(listing.counts)
        self._report(self.progress)

    @property
    def left_count(self) -> int:
        """Shards of the part whose samples are not known."""
        return self._left_of(self._part)

    async def freeze(self) -> Written:
        """Write the dataset as a frozen manifest; all its samples must be known.

        Raises:
            Unsupported: the dataset cannot be frozen.
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        # Every command imports this module, and few need the columns.
        from feedd.prepare.manifest_writer import freeze  # noqa: PLC0415 - see above

        return await freeze(self._pipeline.stages.sources, parse_url(self._url), self._folder, self.listing)

    async def compare(self) -> Difference | None:
        """Compare the newest version of the folder's manifest with its objects; None: there is no version.

        Raises:
            BadRequest: the object is no manifest, damaged, or of another version.
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        from feedd.prepare.manifest_writer import difference  # noqa: PLC0415 - see ``freeze``

        return await difference(self._pipeline.stages.sources, parse_url(self._url), self._folder, self.listing)

    async def begin(self) -> Iterator[int]:
        """Return the shards of the part that are not known, without those that become known meanwhile.

        A run of the whole dataset first takes over what parts have counted.

        Raises:
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = self.listing
        if self._part == WHOLE and self._is_sidecar:
            async for _, rows in self._parts.read(await self._parts.present()):
                await self._take(rows)
        return (shard for shard in self._part.of(len(listing.refs)) if shard not in listing.counts)

    async def count(self, at_once: int) -> None:
        """Count every unknown shard of the part in this process, and save from time to time.

        Failures are kept in the progress.

        Args:
            at_once: shards to read at the same time.
        """
        left = await self.begin()
        job = CountJob(self._pipeline.catalog, self.listing, self.progress.fields)
        await count_each(job, left, self.note, at_once)

    async def note(self, shard: int, found: ShardCount | FeeddError) -> None:
        """Take the count of a shard, or the error; save if the last save is long ago."""
        listing = self.listing
        if isinstance(found, FeeddError):
            self.progress.failures.append(found)
        else:
            listing.counts.setdefault(shard, found.sample_count)
            listing.as_listed.field_names.add(0, shard, found.fields, found.unread)
            if found.sample_count and (self._first is None or shard < self._first[0]):
                self._first = shard, known_fields(found.fields, found.unread)
            if self._count_done(shard):
                self.progress.counted_bytes += listing.refs[shard].size_bytes
        self._report(self.progress)
        if self._saving.due():
            try:
                await self.save()
            except FeeddError as error:  # only the last save must succeed
                _log.warning("the index cannot be saved now", reason=str(error))
            finally:
                self._saving.over()

    async def save(self) -> None:
        """Write the known counts, and take over counts that other runs have written.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = self.listing
        counts = listing.counts
        if self._has_file:
            await self._parts.make_folder()
            counts = {shard: counts[shard] for shard in self._part.of(len(listing.refs)) if shard in counts}
        ours = await CPU.run(_rows, listing.refs, dict(counts), self._folder)
        await self._take(await self._target.save(ours))

    async def finish(self) -> None:
        """Tell late fields. If all parts have counted their shards, write the whole index from their files.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        listing = self.listing
        if self._first is not None and not any(listing.counts.get(shard) for shard in range(self._first[0])):
            self.progress.late = late_fields(listing.as_listed, [self._first[1]], unread=False)
        if not self._has_file or self.left_count:
            return
        count = self._part.count
        present = [part for part in await self._parts.present() if part.count == count]
        if len(present) < count:
            return
        others = (*present[self._part.index + 1 :], *present[: self._part.index])
        async for part, rows in self._parts.read(others):
            await self._take(rows)
            if self._left_of(part):  # this part still runs, and will find the files of all others
                return
        self._target = self._index
        listing.counts.update(await self._read(listing))
        await self._take(await self._index.save(await CPU.run(_rows, listing.refs, dict(listing.counts), self._folder)))

    @property
    def _has_file(self) -> bool:
        """Whether the counts of this run go to a file of its part."""
        return self._part != WHOLE and self._is_sidecar

    @property
    def _is_sidecar(self) -> bool:
        return self._index.url == index_url(self._url)

    def _left_of(self, part: ShardPart) -> int:
        listing = self.listing
        return sum(shard not in listing.counts for shard in part.of(len(listing.refs)))

    async def _read(self, listing: Listing) -> dict[int, int]:
        """Return the counts that the target holds, and let it drop those of objects that are gone.

        Raises:
            BadRequest: it is a file that the user named, and not an index of this data.
        """
        target = self._target
        try:
            rows = await target.read()
        except ValueError as error:
            if not self._is_sidecar:  # a file with the index's own name may be replaced, but not any named file
                raise _no_index(target.url, str(error)) from error
            rows = []
        exact = await CPU.run(self._known, listing, rows)
        ours = await CPU.run(_rows, listing.refs, exact, self._folder)
        if rows and not exact and not self._is_sidecar:
            raise _no_index(target.url, f"expected counts of {self._url}, got counts of {len(rows)} other objects")
        target.drop(frozenset(row for row in rows if ours.get(row.key) != row))
        return exact

    async def _take(self, rows: Sequence[Row]) -> None:
        """Take over counts that other runs have written."""
        if not rows:
            return
        listing = self.listing
        found = await CPU.run(self._known, listing, rows)
        fresh = {shard: count for shard, count in found.items() if shard not in listing.counts}
        listing.counts.update(fresh)
        self._knew(fresh)
        self._report(self.progress)

    def _known(self, listing: Listing, rows: Sequence[Row]) -> dict[int, int]:
        return known(listing.refs, {(self._root, self._folder): rows})

    def _knew(self, counts: Mapping[int, int]) -> None:
        for shard in counts:
            self.progress.known_count += self._count_done(shard)

    def _count_done(self, shard: int) -> bool:
        """Add a shard to the progress; return False if another run has counted it meanwhile."""
        if shard in self._done:
            return False
        listing, progress = self.listing, self.progress
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
