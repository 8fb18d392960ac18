"""All object stores of the daemon in one place: URLs in, versioned objects and their bytes out."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import structlog

from feedd.access import EVERYTHING, FILE_ROOT
from feedd.catalog.bucket_stores import BucketStores, WorkLoopStore, is_s3
from feedd.catalog.manifest import MANIFEST_BYTES_MAX, head_all, names_in
from feedd.catalog.texts import Texts
from feedd.catalog.url_listing import Resolved, UrlListing
from feedd.catalog.url_lists import UrlList, lists_of, runs_of
from feedd.catalog.urls import Location, likely_bucket, parse_url
from feedd.dataset.passed_over import PassedOver
from feedd.errors import BadRequest, FeeddError, NotFound, PermissionDenied, Unsupported
from feedd.fetch.limits import TurnGate
from feedd.fetch.local_store import write_file
from feedd.fetch.packs import ObjectsFetcher, PackBook
from feedd.fetch.pages import closing_pages
from feedd.fetch.ranged import FetchLimits, RangeFetcher
from feedd.fetch.s3.client import warm
from feedd.flow.budget import ByteBudget
from feedd.flow.loop_thread import CallersLoop
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.metrics import PIPELINE_LISTING
from feedd.notices import OBJECTS_EVENT, notices_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from feedd.access import Access
    from feedd.catalog.braces import Allowance
    from feedd.catalog.manifest import Names
    from feedd.dataset.packs import Packs
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.flow.loop_thread import WorkLoop
    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.values import ObjectRef

_REPORTED_MAX: Final = 256  # URLs to remember
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What the scheduler of fetches holds.

    Attributes:
        waiting_count: fetches that have parts without a request.
        waiting_bytes: size of these parts.
        in_flight_count: parts with a request.
    """

    waiting_count: int
    waiting_bytes: int
    in_flight_count: int


class _SkippedLog:
    """Logs skipped objects, once while they stay the same."""

    def __init__(self) -> None:
        self._reported: dict[str, PassedOver] = {}

    def report(self, url: str, passed: PassedOver) -> None:
        """Log the skipped objects of a URL, if there are any that were not logged before."""
        if not passed.count or self._reported.get(url) == passed:
            return
        self._reported.pop(url, None)
        self._reported[url] = passed
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        notices = notices_of(passed.reasons)
        log = _log.warning if any(notice.warns for notice in notices) else _log.info
        why = [notice.text for notice in notices]
        log(OBJECTS_EVENT, url=url, objects=passed.count, first=list(passed.keys), why=why)


class Sources:
    """Opens stores on first use, one per bucket, and closes them all at exit.

    Args:
        options: limits and access.
        recorder: takes the measurements.
        clock: times requests and waits between attempts.
        work_loop: sends all requests; opened and closed with the sources. None: the caller's loop.

    Attributes:
        work_loop: as given.
        buckets: the stores, and what is known about them; belongs to the work loop.
        ranges: fetches by ranges; belongs to the work loop.
        texts: parses foreign texts from any store, in threads.
    """

    def __init__(
        self, options: SourceOptions, recorder: Recorder, clock: Clock, work_loop: WorkLoop | None = None
    ) -> None:
        self._options = options
        self._recorder = recorder
        self.work_loop = work_loop or CallersLoop()
        self.buckets = BucketStores(options, recorder, clock)
        self._heads = TurnGate(options.heads_in_flight)  # on the work loop, like the stores
        self._closed = False
        self._skipped_log = _SkippedLog()
        self.ranges = _range_fetcher(self.buckets, options, recorder, clock)
        self._book = PackBook(self.ranges.turns)
        self._fetcher = ObjectsFetcher(self.ranges, self._book, self.work_loop)
        self.texts = Texts(self._fetcher)

    async def __aenter__(self) -> Self:
        await self.work_loop.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closed = True
        try:
            await self.work_loop.run(self.buckets.close)
        finally:
            await self.work_loop.__aexit__(*exc)

    async def warm(self) -> None:
        """Do work in advance that every first request would wait for."""
        await warm()

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Count an open that waits for a listing, during the body."""
        self._recorder.move(PIPELINE_LISTING, 1)
        try:
            yield
        finally:
            self._recorder.move(PIPELINE_LISTING, -1)

    @property
    def scheduled(self) -> Scheduled:
        """What waits for a request, and what is in flight."""
        scheduler = self.ranges.scheduler
        return Scheduled(scheduler.waiting_count, scheduler.waiting_bytes, scheduler.in_flight_count)

    @property
    def fetcher(self) -> ObjectsFetcher:
        """The fetcher for objects of any store, by their root."""
        return self._fetcher

    @property
    def packs(self) -> PackBook:
        """The contents of packs, and which objects of arriving packs are available."""
        return self._book

    def store(self, root: str) -> ObjectStore:
        """Return the store of ``s3://bucket``, ``file://``, or an installed one; it opens on first use.

        Its first use raises BadRequest if the kind of store is unknown.
        """
        assert not self._closed, "sources are closed"
        return WorkLoopStore(root, self.buckets.of, self.work_loop)

    async def resolve(self, urls: Sequence[str], access: Access = EVERYTHING) -> Sequence[ObjectRef]:
        """Return the current versions of the objects that ``urls`` name, in order; see ``resolve_all``.

        Packs among them cannot be fetched, because their contents are not kept.
        """
        return (await self.resolve_all(urls, access)).refs

    async def resolve_all(
        self,
        urls: Sequence[str],
        access: Access = EVERYTHING,
        *,
        shards: bool = False,
        allowance: Allowance | None = None,
        back: int = 0,
    ) -> Resolved:
        """Find the current versions of the objects that ``urls`` name, in order; duplicates stay.

        A URL is a prefix (``s3://bucket/train/``), an object, a directory (``file:///data``, ``/data``), or a manifest
        (``manifest+s3://bucket/x`` or ``augmented+``). A URL that equals an object's key names only that object. A URL
        with braces or ``::`` is a list of URLs (``catalog.braces``), unless an object has exactly this name. A folder
        with a frozen manifest (``frozen+s3://bucket/train/``) is not listed: see ``catalog.frozen``.

        Args:
            urls: URLs of one dataset.
            access: what the caller may read; every URL and every object that a manifest names is checked.
            shards: treat all objects as shards; otherwise objects that look like samples are packed.
            allowance: limit for braces, shared by the datasets of a request; None: this dataset has its own.
            back: how many versions before the newest to take of frozen manifests.

        Raises:
            BadRequest: malformed URL or manifest.
            Unsupported: the URL is understood but not served.
            NotFound: a URL names nothing.
            PermissionDenied: the caller may not read a URL, or the store's answer.
            StoreUnavailable: the store's answer.
        """
        found: list[ObjectRef] = []
        sidecar_refs: dict[ObjectRef, None] = {}
        packs: list[Packs] = []
        named: dict[int, str] = {}
        passed_over = PassedOver()
        counts: dict[int, int] = {}
        formats: dict[int, str] = {}
        lists = await CPU.run(_permitted, urls, allowance, access)  # all, before the first request
        takings = [taking for one in lists for taking in await self._named(one, access, shards=shards, back=back)]
        whole = [taking.frozen for taking in takings]
        if len(whole) == 1 and whole[0] is not None and not whole[0].manifest.head.packed:
            self._skipped_log.report(takings[0].location.url, whole[0].passed_over)
            return await CPU.run(Resolved.of, whole[0])
        for taking in takings:
            location = taking.location
            passed = taking.passed_over
            if taking.frozen is not None and not taking.frozen.manifest.head.packed:
                counts |= {len(found) + at: count for at, count in taking.frozen.counts.items()}
                formats |= {len(found) + at: name for at, name in taking.frozen.formats.items()}
            for grouped in await CPU.run(taking.grouped):  # takes microseconds per object
                passed = passed.plus(PassedOver(grouped.left_out, grouped.examples, grouped.reasons))
                if location.format:
                    named |= dict.fromkeys(range(len(found), len(found) + len(grouped.refs)), location.format)
                found += grouped.refs
                if grouped.packs is not None:
                    packs.append(grouped.packs)
                    self._book.note(grouped.packs)
            sidecar_refs.update(taking.sidecar_refs)
            self._skipped_log.report(location.url, passed)
            passed_over = passed_over.plus(passed)
        if not found and sidecar_refs:
            raise _nothing(" ".join(urls))
        if archived := [ref for taking in takings for ref in taking.archived]:
            from feedd.catalog.archived_objects import refuse_archived  # noqa: PLC0415 - most runs have no such object

            await refuse_archived(archived, found, packs, self.store, self._options.heads_in_flight)
        versions = tuple(frozen.ref for frozen in whole if frozen is not None)
        return Resolved(tuple(found), tuple(sidecar_refs), tuple(packs), named, passed_over, counts, formats, versions)

    async def _named(self, one: UrlList, access: Access, *, shards: bool, back: int) -> list[UrlListing]:
        """Return the listing of a URL as it is written, or, if no such object exists, of the URLs in its braces."""
        if one.itself is not None:
            try:
                return [await self._taken(one.itself, access, shards=shards, back=back)]
            except (NotFound, PermissionDenied):
                if len(one.locations) == 1:
                    raise
        heads = await head_all(one.names, self._head_if_there, self._options.heads_in_flight)
        found: list[UrlListing] = []
        for location, refs in await CPU.run(runs_of, one, heads):
            if refs:
                found.append(UrlListing(location, shards=shards))
                found[-1].take_listed(refs)
            else:
                found.append(await self._taken(location, access, shards=shards, back=back))
        return found

    async def _taken(self, location: Location, access: Access, *, shards: bool, back: int) -> UrlListing:
        if location.frozen:
            # Few runs read such manifests, and an open of others imports less.
            from feedd.catalog.frozen import thawed  # noqa: PLC0415 - see above

            return await thawed(self.texts, self.store(location.root), location, back, access)
        taking = UrlListing(location, shards=shards)
        try:
            await (
                self._manifest(location, access, taking)
                if location.manifest
                else _take_plain(self.store(location.root), location, taking, access)
            )
        except NotFound as error:
            error.hint = error.hint or likely_bucket(location)
            raise
        return taking

    async def _head(self, root: str, key: str) -> ObjectRef:
        """Return the current version of an object; limits requests, because there may be very many."""

        async def gated() -> ObjectRef:
            async with self._heads:
                return await self.buckets.of(root).head(key)

        return await self.work_loop.run(gated)

    async def _head_if_there(self, root: str, key: str) -> ObjectRef | None:
        """Like ``_head``, but return None for a missing object, whose name may be a prefix."""
        try:
            return await self._head(root, key)
        except NotFound:
            return None

    async def _heads_of(self, names: Names, taking: UrlListing) -> list[ObjectRef | None]:
        """Return the current versions of the objects of an augmented manifest, and note which are archived."""
        refs = await head_all(names, self._head_if_there, self._options.heads_in_flight)
        await CPU.run(taking.note_archived, refs)
        return refs

    async def head(self, url: str, access: Access = EVERYTHING) -> ObjectRef:
        """Return the current version of one object or file.

        Raises:
            BadRequest: malformed URL.
            PermissionDenied: the caller may not read the URL, or the store's answer.
            NotFound, StoreUnavailable: the store's answer.
        """
        location = parse_url(url)
        access.check(location.root, location.key, url)
        return await self.store(location.root).head(location.key)

    async def put(self, url: str, data: bytes, over: str | None = None) -> ObjectRef:
        """Create or replace one object or file; return its new version.

        Args:
            url: URL of the object.
            data: its whole content.
            over: etag of the version to replace, or empty if there must be none; None: replace any version.

        Raises:
            BadRequest: malformed URL.
            ObjectChanged: another version exists, or any version if there must be none. If an answer was lost, it may
                be the version just written.
            PermissionDenied, NotFound, StoreUnavailable: the store's answer.
        """
        location = parse_url(url)
        if location.root == FILE_ROOT:
            return await LOCAL_FILES.run(write_file, location.key, data, over)
        if not is_s3(location.root):
            message = f"expected a URL that can be written to, s3:// or a path, got {url}"
            hint = "write to a file of this machine instead: feedd index --out FILE"
            raise Unsupported(message, object=url, hint=hint, stage="source")
        return await self.work_loop.run(lambda: self.buckets.put(location, data, over))

    async def _manifest(self, location: Location, access: Access, taking: UrlListing) -> None:
        ref = await self.store(location.root).head(location.key)
        if ref.size_bytes > MANIFEST_BYTES_MAX:
            message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
            raise BadRequest(message, object=location.url, stage="source")
        if location.augmented:
            from feedd.catalog.augmented_manifest import parse_lines  # noqa: PLC0415 - most runs have no such manifest

            found = await self.texts.parse(ref, functools.partial(parse_lines, url=location.url))
            await CPU.run(access.check_names, found.names, location.url)
            heads = self._heads_of(found.names, taking)
            taking.take_packs(await found.packs(ref, heads))
            return
        names = await self.texts.parse(ref, functools.partial(names_in, url=location.url))
        await CPU.run(access.check_names, names, location.url)
        refs = await head_all(names, self._head, self._options.heads_in_flight)
        await CPU.run(taking.take_all_named, refs)


def _range_fetcher(buckets: BucketStores, options: SourceOptions, recorder: Recorder, clock: Clock) -> RangeFetcher:
    limits = FetchLimits(
        options.part_size_bytes,
        options.parts_in_flight,
        verified=options.verify == "checksum",
        writers=options.transfer_threads,
        now_s=clock.monotonic_s,
    )
    return RangeFetcher(
        buckets.of,
        ByteBudget(options.bytes_in_flight),
        recorder,
        limits,
        concurrency_of=lambda root: buckets.state(root).concurrency,
        sizes_of=lambda root: buckets.state(root).sizes,
    )


def _permitted(urls: Sequence[str], allowance: Allowance | None, access: Access) -> list[UrlList]:
    """Expand URLs and refuse those that the caller may not read.

    A URL with braces that may not be read as it is written is only expanded.
    """
    found = lists_of(urls, allowance)
    for number, one in enumerate(found):
        for location in one.locations:
            access.check(location.root, location.key, location.url)
        if one.itself is not None and not access.covers(one.itself.root, one.itself.key):
            found[number] = replace(one, itself=None)
    return found


def _missing_path(location: Location) -> str:
    """Return a hint for a path without files; empty: the location is in a store."""
    local = "check the path; it is looked up where the daemon runs"
    return likely_bucket(location) or (local if location.root == FILE_ROOT else "")


def _nothing(url: str, hint: str = "") -> NotFound:
    hint = hint or "check bucket and prefix; a prefix is matched from the start of the key, letter by letter"
    if set(url) & set("*?["):
        hint = "globs are not expanded: write the prefix before the first of * ? [, or a range like {000..127}"
    return NotFound("expected at least one object, got none", object=url, hint=hint, stage="source")


async def _take_plain(store: ObjectStore, location: Location, taking: UrlListing, access: Access) -> None:
    """List a directory or prefix, or take the object that the location names."""
    is_file = location.root == FILE_ROOT and location.key[-1:] != "/"
    if is_file:
        location = await _directory_or_file(store, location)
        taking.within(location.key)
    try:
        async with closing_pages(store.list(location.key)) as pages:
            async for listed in pages:
                # Rules for a folder do not cover files beside it, which begin alike.
                page = [ref for ref in listed if access.covers(FILE_ROOT, ref.key)] if is_file else listed
                if page and not taking.count and page[0].key == location.key:
                    taking.take(page[:1])  # byte order puts the exact key first
                    return
                taking.take(page)
    except PermissionDenied as denied:
        if taking.count:
            raise
        taking.take(await _without_listing(store, location, denied))
    if not taking.count:
        raise _nothing(location.url, _missing_path(location))


async def _without_listing(store: ObjectStore, location: Location, denied: PermissionDenied) -> list[ObjectRef]:
    """Return a single object for credentials that may read but not list."""
    if location.key[-1:] in {"", "/"}:
        raise denied
    try:
        return [await store.head(location.key)]
    except FeeddError:
        raise denied from None


async def _directory_or_file(store: ObjectStore, location: Location) -> Location:
    """Add a slash to a directory, so that ``/data/a`` does not match ``/data/ab``."""
    async with closing_pages(store.list(location.key + "/")) as pages:
        try:
            await anext(pages, None)
        except NotFound:
            return location
    return replace(location, key=location.key + "/")
