"""The store of each bucket, with the stages that a request passes, and the recent behaviour of the bucket."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import structlog

from feedd.access import FILE_ROOT
from feedd.catalog.urls import S3_SCHEME, parse_url
from feedd.fetch.hedge import HedgePolicy, Hedger, HedgeStore
from feedd.fetch.limits import ConcurrencyLimit, PartSize
from feedd.fetch.local_store import LocalStore
from feedd.fetch.pages import closing_pages
from feedd.fetch.requests import RequestStore
from feedd.fetch.retry import RetryLimits, RetryPolicy, RetryQuota, RetryStore
from feedd.fetch.s3.store import S3Store
from feedd.fetch.scheduler import PARTS_PER_PLACE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from feedd.catalog.urls import Location
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.store import ObjectFacts
    from feedd.flow.loop_thread import WorkLoop
    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress

_log = structlog.get_logger(__name__)


@runtime_checkable
class TransferStore(Protocol):
    """A store that receives bodies in transfer threads."""

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""


class BucketState:
    """The state machines of one bucket.

    Attributes:
        quota: how many requests may be retried.
        concurrency: how many parts may be in flight.
        hedger: which parts are requested twice.
        sizes: how large parts are.
    """

    def __init__(self, options: SourceOptions, root: str) -> None:
        self.quota = RetryQuota()
        self.concurrency = ConcurrencyLimit(
            options.parts_in_flight, pinned=options.pinned, on_change=partial(_changed, root)
        )
        self.sizes = PartSize(options.part_size_bytes, options.parts_in_flight, options.bytes_in_flight)
        policy = HedgePolicy(share=options.hedge_share, saved_bytes=8 * self.sizes.aim_bytes)
        self.hedger = Hedger(policy) if options.hedge_share else None

    def __repr__(self) -> str:
        return f"BucketState({self.quota!r}, {self.concurrency!r})"


class BucketStores:
    """Opens stores on first use, one per bucket. Belongs to one event loop, which sends all requests.

    Args:
        options: limits and access.
        recorder: takes the measurements.
        clock: times requests and waits between attempts.
    """

    def __init__(self, options: SourceOptions, recorder: Recorder, clock: Clock) -> None:
        self._options = options
        self._recorder = recorder
        self._clock = clock
        self._stores: dict[str, ObjectStore] = {}
        self._buckets: dict[str, S3Store] = {}
        self._states: dict[str, BucketState] = {}
        self._others: list[TransferStore] = []

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that transfer threads have spent on bodies; any thread may ask."""
        return sum(store.transfer_busy_s for store in (*self._others, *tuple(self._buckets.values())))

    def of(self, root: str) -> ObjectStore:
        """Return the store of ``s3://bucket``, ``file://``, or an installed one; connections open on first use.

        Raises:
            BadRequest: the kind of store is unknown.
        """
        return self._stores.get(root) or self.use(self._bare(root))

    def use(self, bare: ObjectStore) -> ObjectStore:
        """Add the stages to a store, use it for its root, and return it."""
        requests_max = self._options.parts_in_flight * PARTS_PER_PLACE + self._options.heads_in_flight
        sent = RequestStore(self._traced(bare, requests=True), requests_max, self._recorder, self._clock)
        state = self.state(bare.root)
        hedged: ObjectStore = sent
        if state.hedger is not None and bare.root != FILE_ROOT:
            hedged = HedgeStore(sent, state.hedger, self._recorder)
        found = self._stores[bare.root] = self._traced(self._retried(bare, hedged), requests=False)
        return found

    def add(self, root: str, store: ObjectStore) -> None:
        """Use a store as it is, without stages, for a root of its own."""
        self._stores[root] = store

    def state(self, root: str) -> BucketState:
        """Return the state of a store: limits and rates learned from its answers."""
        found = self._states.get(root)
        if found is None:
            found = self._states[root] = BucketState(self._options, root)
        return found

    async def put(
        self, location: Location, data: bytes, over: str | None, facts: ObjectFacts | None = None
    ) -> ObjectRef:
        """Write an object of S3; see ``S3Store.put``."""
        store = self._bucket(location.bucket)
        return await self._retried(store, store).ask(lambda: store.put(location.key, data, over, facts))

    async def describe(self, location: Location) -> tuple[ObjectRef, Mapping[str, str]]:
        """Return an object of S3 and its metadata; see ``S3Store.describe``."""
        store = self._bucket(location.bucket)
        return await self._retried(store, store).ask(lambda: store.describe(location.key))

    def _bucket(self, bucket: str) -> S3Store:
        """Return the store of a bucket, without stages; it opens on first use."""
        if bucket not in self._buckets:
            self._buckets[bucket] = S3Store(bucket, self._options)
        return self._buckets[bucket]

    async def close(self) -> None:
        """Close all stores. A store that fails to close does not keep others open."""
        stores: list[ObjectStore] = [*self._stores.values(), *self._buckets.values()]
        self._stores, self._buckets = {}, {}
        async with contextlib.AsyncExitStack() as stack:
            for store in stores:
                stack.push_async_callback(store.close)

    def _bare(self, root: str) -> ObjectStore:
        if root == FILE_ROOT:
            return LocalStore(self._options.file_threads, self._options.file_folders)
        if not is_s3(root):
            from feedd.catalog.other_stores import open_store  # noqa: PLC0415 - most runs have no such store

            found = open_store(root, self._options)
            self._others += [found] if isinstance(found, TransferStore) else []
            return found
        return self._bucket(parse_url(root).bucket)

    def _traced(self, store: ObjectStore, *, requests: bool) -> ObjectStore:
        """Return the store, wrapped if tracing is on."""
        if not self._options.traced:
            return store
        from feedd.fetch.tracing_store import TracingStore  # noqa: PLC0415 - only while tracing is on

        return TracingStore(store, requests=requests)

    def _retried(self, bare: ObjectStore, inner: ObjectStore) -> RetryStore:
        state, policy = self.state(bare.root), RetryPolicy(attempts_max=self._options.attempts_max)
        limits = RetryLimits(policy, self._options.whole_deadline_s, state.quota, state.concurrency.throttled)
        return RetryStore(inner, limits, self._clock, self._recorder)


class WorkLoopStore:
    """Sends the calls of one loop to a store that another loop owns.

    Args:
        root: root of the store.
        store_of: finds the store; called on the work loop.
        loop: the work loop.
    """

    def __init__(self, root: str, store_of: Callable[[str], ObjectStore], loop: WorkLoop) -> None:
        self.root = root
        self._store_of = store_of
        self._loop = loop

    def __repr__(self) -> str:
        return f"WorkLoopStore({self.root})"

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the store's pages; each is requested when it is wanted."""
        pages = _Pages(self._store_of, self.root, prefix, start_after)
        try:
            while (page := await self._loop.run(pages.next)) is not None:
                yield page
        finally:
            await self._loop.run(pages.close)

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the store."""
        return await self._loop.run(lambda: self._store_of(self.root).head(key))

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the store; see ``ObjectStore.checksum``."""
        return await self._loop.run(lambda: self._store_of(self.root).checksum(ref))

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the store."""
        await self._loop.run(lambda: self._store_of(self.root).read_into(ref, span, sink, progress))

    async def close(self) -> None:
        """Do nothing: the store belongs to the work loop."""


class _Pages:
    """A listing, used on the work loop."""

    def __init__(self, store_of: Callable[[str], ObjectStore], root: str, prefix: str, start_after: str) -> None:
        self._store_of = store_of
        self._wanted = root, prefix, start_after
        self._pages: AsyncGenerator[list[ObjectRef], None] | None = None

    async def next(self) -> list[ObjectRef] | None:
        """Return the next page; None: there are no more."""
        if self._pages is None:
            root, prefix, start_after = self._wanted
            self._pages = _generator(self._store_of(root), prefix, start_after)
        return await anext(self._pages, None)

    async def close(self) -> None:
        """Close the listing."""
        if self._pages is not None:
            await self._pages.aclose()


async def _generator(store: ObjectStore, prefix: str, start_after: str) -> AsyncGenerator[list[ObjectRef], None]:
    async with closing_pages(store.list(prefix, start_after)) as pages:
        async for page in pages:
            yield page


def _changed(root: str, before: int, now: int, reason: str) -> None:
    _log.info("requests in flight changed", store=root, before=before, now=now, reason=reason)


def is_s3(root: str) -> bool:
    """Whether a root names a bucket of S3."""
    return root.startswith(f"{S3_SCHEME}://")
