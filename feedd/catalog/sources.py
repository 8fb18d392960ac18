"""All stores of the daemon behind one door: URLs in, versioned objects and their bytes out."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

import structlog

from feedd.catalog.manifest import MANIFEST_BYTES_MAX, head_all, names_in
from feedd.catalog.texts import Texts
from feedd.catalog.url_listing import UrlListing
from feedd.catalog.url_lists import UrlList, lists_of, runs_of
from feedd.catalog.urls import FILE_ROOT, S3_SCHEME, Location, likely_bucket, parse_url
from feedd.dataset.passed_over import PassedOver
from feedd.errors import BadRequest, FeeddError, NotFound, PermissionDenied, Unsupported
from feedd.fetch.bucket_state import BucketState
from feedd.fetch.hedging_store import HedgeStore
from feedd.fetch.limiting_store import LimitStore
from feedd.fetch.local_store import LocalStore, write_file
from feedd.fetch.metering_store import MeteredStore
from feedd.fetch.object_packs import ObjectsFetcher, PackBook
from feedd.fetch.pages import closing_pages
from feedd.fetch.ranged import FetchLimits, RangeFetcher
from feedd.fetch.retry_policy import RetryPolicy
from feedd.fetch.retrying_store import RetryLimits, RetryStore
from feedd.fetch.s3.direct_store import DirectStore
from feedd.fetch.s3.region import BucketFacts
from feedd.fetch.s3.sdk_client import warm
from feedd.fetch.s3.sdk_store import S3Store
from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.fetch.turn_gate import TurnGate
from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.notices import OBJECTS_EVENT, notices_of
from feedd.recipe import plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.braces import Allowance
    from feedd.dataset.packs import Packs
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.protocols import Clock, ObjectStore, Recorder, SpanFetcher
    from feedd.values import ObjectRef


_TOLD_MOST: Final = 256  # URLs
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What URLs name.

    Attributes:
        refs: the data.
        beside: objects among it that tell of samples and hold none (``dataset.index_file``, ``dataset.sidecars``).
        packs: what is in those of the refs that are packs, which can be fetched as long as these are held.
        named: the format of those whose URL names one, by their place in ``refs``.
        passed_over: objects that are no data.
    """

    refs: tuple[ObjectRef, ...]
    beside: tuple[ObjectRef, ...]
    packs: tuple[Packs, ...] = ()
    named: Mapping[int, str] = field(default_factory=dict)
    passed_over: PassedOver = field(default_factory=PassedOver)


class _Teller:
    """Has it in the log which objects are passed over, once for as long as they are the same."""

    def __init__(self) -> None:
        self._told: dict[str, PassedOver] = {}

    def tell(self, url: str, passed: PassedOver) -> None:
        """Say what was passed over of a URL, if anything was, and that is news."""
        if not passed.count or self._told.get(url) == passed:
            return
        self._told.pop(url, None)
        self._told[url] = passed
        if len(self._told) > _TOLD_MOST:
            del self._told[next(iter(self._told))]
        notices = notices_of(passed.reasons)
        log = _log.warning if any(notice.warns for notice in notices) else _log.info
        why = [notice.text for notice in notices]
        log(OBJECTS_EVENT, url=url, objects=passed.count, first=list(passed.keys), why=why)


class Sources:
    """Opens stores on first use, one per bucket, and closes them all at exit.

    Args:
        options: bounds and access.
        recorder: takes the measurements.
        clock: times requests and waits between attempts.

    Attributes:
        texts: reads texts of strangers, of any store, off the loop.
    """

    def __init__(self, options: SourceOptions, recorder: Recorder, clock: Clock) -> None:
        self._options = options
        self._recorder = recorder
        self._clock = clock
        self._stores: dict[str, ObjectStore] = {}
        self._tempos: dict[str, BucketState] = {}
        self._facts: defaultdict[str, BucketFacts] = defaultdict(BucketFacts)
        self._heads = TurnGate(options.heads_in_flight)
        self._closed = False
        self._progress_stream = _Teller()
        plain = RangeFetcher(
            self.store,
            ByteBudget(options.bytes_in_flight),
            recorder,
            FetchLimits(
                options.part_size_bytes,
                options.parts_in_flight,
                verified=options.verify == "checksum",
                lanes=options.transfer_threads,
            ),
            pace_of=lambda root: self.bucket_state(root).pace,
            sizes_of=lambda root: self.bucket_state(root).sizes,
        )
        self._book = PackBook(plain.turns)
        self._fetcher = ObjectsFetcher(plain, self._book)
        self.texts = Texts(self._fetcher)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closed = True
        stores, self._stores = list(self._stores.values()), {}
        async with contextlib.AsyncExitStack() as stack:  # one that fails to close does not keep the others open
            for store in stores:
                stack.push_async_callback(store.close)

    async def warm(self) -> None:
        """Do ahead of the first request what every first request would wait for."""
        await CPU.run(warm)

    @property
    def fetcher(self) -> SpanFetcher:
        """Fetches objects of any store, by their root."""
        return self._fetcher

    @property
    def packs(self) -> PackBook:
        """What is in packs, and what has come of those on their way in."""
        return self._book

    def store(self, root: str) -> ObjectStore:
        """Return the store of ``s3://bucket``, ``file://``, or what an installed store has; see ``recipe.plugins``.

        Connections are opened on first use.

        Raises:
            BadRequest: no such kind of store.
        """
        assert not self._closed, "sources are closed"
        found = self._stores.get(root)
        if found is None:
            found = self._stores[root] = self._wrapped(self._bare(root))
        return found

    def bucket_state(self, root: str) -> BucketState:
        """Return what is known of how that store answers."""
        found = self._tempos.get(root)
        if found is None:
            found = self._tempos[root] = BucketState(self._options)
        return found

    async def resolve(self, urls: Sequence[str]) -> tuple[ObjectRef, ...]:
        """Return the current versions of the objects that ``urls`` name, in order; see ``resolve_all``.

        Packs among them cannot be fetched: nobody holds what is in them.
        """
        return (await self.resolve_all(urls)).refs

    async def resolve_all(
        self, urls: Sequence[str], *, shards: bool = False, allowance: Allowance | None = None
    ) -> Resolved:
        """Find the current versions of the objects that ``urls`` name, in order; duplicates stay.

        A URL is a prefix (``s3://bucket/train/``), an object, a directory (``file:///data``, ``/data``), or a
        manifest (``manifest+s3://bucket/x.manifest``). A URL that is exactly an object's key names only that. One with
        braces, or ``::`` between others, is a list of URLs (``catalog.braces``), unless something is called just so.

        Args:
            urls: of one dataset.
            shards: objects are shards, whatever they are called; else those that look like samples are packed.
            allowance: what braces may stand for, of a request that names several datasets; None: of this one.

        Raises:
            BadRequest: malformed URL or manifest. Unsupported: understood, and not served.
            NotFound: a URL that names nothing.
            PermissionDenied, StoreUnavailable: as the store answered.
        """
        found: list[ObjectRef] = []
        beside: dict[ObjectRef, None] = {}
        packs: list[Packs] = []
        named: dict[int, str] = {}
        passed_over = PassedOver()
        lists = await CPU.run(lists_of, urls, allowance)  # all are judged before the first request
        for taking in [taking for one in lists for taking in await self._named(one, shards=shards)]:
            location = taking.location
            passed = PassedOver()
            for grouped in await CPU.run(taking.grouped):  # some microseconds per object
                passed = passed.plus(PassedOver(grouped.left_out, grouped.examples, grouped.reasons))
                if location.format:
                    named |= dict.fromkeys(range(len(found), len(found) + len(grouped.refs)), location.format)
                found += grouped.refs
                if grouped.packs is not None:
                    packs.append(grouped.packs)
                    self._book.note(grouped.packs)
            beside.update(taking.beside)
            self._progress_stream.tell(location.url, passed)
            passed_over = passed_over.plus(passed)
        if not found and beside:
            raise _nothing(" ".join(urls))
        return Resolved(tuple(found), tuple(beside), tuple(packs), named, passed_over)

    async def _named(self, one: UrlList, *, shards: bool) -> list[UrlListing]:
        """Return what a URL names: as it is written, or, where nothing is called so, what its braces stand for."""
        if one.itself is not None:
            try:
                return [await self._taken(one.itself, shards=shards)]
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
                found.append(await self._taken(location, shards=shards))
        return found

    async def _taken(self, location: Location, *, shards: bool) -> UrlListing:
        taking = UrlListing(location, shards=shards)
        try:
            await (self._manifest(location, taking) if location.manifest else self._plain(location, taking))
        except NotFound as error:
            error.hint = error.hint or likely_bucket(location)
            raise
        return taking

    async def _head(self, root: str, key: str) -> ObjectRef:
        """Return one of very many objects."""
        async with self._heads:
            return await self.store(root).head(key)

    async def _head_if_there(self, root: str, key: str) -> ObjectRef | None:
        """Return one of very many objects; None: there is none, so that it may be a prefix."""
        try:
            return await self._head(root, key)
        except NotFound:
            return None

    async def head(self, url: str) -> ObjectRef:
        """Return the current version of one object, or file.

        Raises:
            BadRequest: malformed URL.
            NotFound, PermissionDenied, StoreUnavailable: as the store answered.
        """
        location = parse_url(url)
        return await self.store(location.root).head(location.key)

    async def put(self, url: str, data: bytes, over: str | None = None) -> ObjectRef:
        """Make or replace one object, or file; return what is there then.

        Args:
            url: of the object.
            data: all of it.
            over: etag of the version it takes the place of, empty: of none; None: whatever is there.

        Raises:
            BadRequest: malformed URL.
            ObjectChanged: another version is there, or one at all. It may be this one, when an answer was lost.
            PermissionDenied, NotFound, StoreUnavailable: as the store answered.
        """
        location = parse_url(url)
        if location.root == FILE_ROOT:
            return await LOCAL_FILES.run(write_file, location.key, data, over)
        if not _is_s3(location.root):
            message = f"expected a URL that can be written to, s3:// or a path, got {url}"
            hint = "write to a file of this machine instead: feedd index --out FILE"
            raise Unsupported(message, object=url, hint=hint, stage="source")
        store = S3Store(location.bucket, self._options, self._facts[location.bucket])
        try:
            return await self._retried(store, store).ask(lambda: store.put(location.key, data, over))
        finally:
            await store.close()

    def _bare(self, root: str) -> ObjectStore:
        if root == FILE_ROOT:
            return LocalStore(self._options.file_threads)
        if not _is_s3(root):
            return plugins.store(root)
        kind = S3Store if self._options.transport == "aiobotocore" else DirectStore
        bucket = parse_url(root).bucket
        return kind(bucket, self._options, self._facts[bucket])

    def _wrapped(self, bare: ObjectStore) -> ObjectStore:
        metered = MeteredStore(bare, self._recorder, self._clock)
        limited = LimitStore(metered, self._options.parts_in_flight * PARTS_PER_PLACE + self._options.heads_in_flight)
        bucket_state = self.bucket_state(bare.root)
        hedged: ObjectStore = limited
        if bucket_state.hedger is not None and bare.root != FILE_ROOT:
            hedged = HedgeStore(limited, bucket_state.hedger, self._recorder)
        return self._retried(bare, hedged)

    def _retried(self, bare: ObjectStore, inner: ObjectStore) -> RetryStore:
        bucket_state = self.bucket_state(bare.root)
        policy = RetryPolicy(attempts_max=self._options.attempts_max)
        limits = RetryLimits(policy, self._options.whole_deadline_s, bucket_state.quota, bucket_state.pace.throttled)
        return RetryStore(inner, limits, self._clock, self._recorder)

    async def _plain(self, location: Location, taking: UrlListing) -> None:
        store = self.store(location.root)
        if location.root == FILE_ROOT and location.key[-1:] != "/":
            location = await _directory_or_file(store, location)
            taking.within(location.key)
        try:
            async with closing_pages(store.list(location.key)) as pages:
                async for page in pages:
                    if not taking.count and page[0].key == location.key:
                        taking.take(page[:1])  # byte order puts the exact key first
                        return
                    taking.take(page)
        except PermissionDenied as denied:
            if taking.count:
                raise
            taking.take(await _without_listing(store, location, denied))
        if not taking.count:
            raise _nothing(location.url)

    async def _manifest(self, location: Location, taking: UrlListing) -> None:
        ref = await self.store(location.root).head(location.key)
        if ref.size_bytes > MANIFEST_BYTES_MAX:
            message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
            raise BadRequest(message, object=location.url, stage="source")
        names = await self.texts.parse(ref, functools.partial(names_in, url=location.url))
        refs = await head_all(names, self._head, self._options.heads_in_flight)
        await CPU.run(taking.take_all_named, refs)


def _is_s3(root: str) -> bool:
    return root.startswith(f"{S3_SCHEME}://")


def _nothing(url: str) -> NotFound:
    hint = "check bucket and prefix; a prefix is matched from the start of the key, letter by letter"
    if set(url) & set("*?["):
        hint = "globs are not expanded: write the prefix before the first of * ? [, or a range like {000..127}"
    return NotFound("expected at least one object, got none", object=url, hint=hint, stage="source")


async def _without_listing(store: ObjectStore, location: Location, denied: PermissionDenied) -> list[ObjectRef]:
    """Serve a single object to credentials that may read but not list."""
    if location.key[-1:] in {"", "/"}:
        raise denied
    try:
        return [await store.head(location.key)]
    except FeeddError:
        raise denied from None


async def _directory_or_file(store: ObjectStore, location: Location) -> Location:
    """Name a directory with its slash, so that ``/data/a`` does not match ``/data/ab``."""
    async with closing_pages(store.list(location.key + "/")) as pages:
        try:
            await anext(pages, None)
        except NotFound:
            return location
    return replace(location, key=location.key + "/")
