"""The store of each bucket, with the stages that a request passes, and what is known about the bucket."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from feedd.access import FILE_ROOT
from feedd.catalog.urls import S3_SCHEME, parse_url
from feedd.fetch.bucket_state import BucketState
from feedd.fetch.hedging_store import HedgeStore
from feedd.fetch.limiting_store import LimitStore
from feedd.fetch.local_store import LocalStore
from feedd.fetch.metering_store import MeteredStore
from feedd.fetch.retry_policy import RetryPolicy
from feedd.fetch.retrying_store import RetryLimits, RetryStore
from feedd.fetch.s3.direct_store import DirectStore
from feedd.fetch.s3.region import BucketFacts
from feedd.fetch.s3.sdk_store import S3Store
from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.recipe import plugins

if TYPE_CHECKING:
    from feedd.catalog.urls import Location
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.values import ObjectRef


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
        self._states: dict[str, BucketState] = {}
        self._facts: defaultdict[str, BucketFacts] = defaultdict(BucketFacts)

    def of(self, root: str) -> ObjectStore:
        """Return the store of ``s3://bucket``, ``file://``, or an installed one; connections open on first use.

        Raises:
            BadRequest: the kind of store is unknown.
        """
        return self._stores.get(root) or self.use(self._bare(root))

    def use(self, bare: ObjectStore) -> ObjectStore:
        """Add the stages to a store, use it for its root, and return it."""
        metered = MeteredStore(bare, self._recorder, self._clock)
        limited = LimitStore(metered, self._options.parts_in_flight * PARTS_PER_PLACE + self._options.heads_in_flight)
        state = self.state(bare.root)
        hedged: ObjectStore = limited
        if state.hedger is not None and bare.root != FILE_ROOT:
            hedged = HedgeStore(limited, state.hedger, self._recorder)
        found = self._stores[bare.root] = self._retried(bare, hedged)
        return found

    def state(self, root: str) -> BucketState:
        """Return the state of a store: limits and rates learned from its answers."""
        found = self._states.get(root)
        if found is None:
            found = self._states[root] = BucketState(self._options)
        return found

    async def put(self, location: Location, data: bytes, over: str | None) -> ObjectRef:
        """Write an object of S3; see ``S3Store.put``."""
        store = S3Store(location.bucket, self._options, self._facts[location.bucket])
        try:
            return await self._retried(store, store).ask(lambda: store.put(location.key, data, over))
        finally:
            await store.close()

    async def close(self) -> None:
        """Close all stores. A store that fails to close does not keep others open."""
        stores, self._stores = list(self._stores.values()), {}
        async with contextlib.AsyncExitStack() as stack:
            for store in stores:
                stack.push_async_callback(store.close)

    def _bare(self, root: str) -> ObjectStore:
        if root == FILE_ROOT:
            return LocalStore(self._options.file_threads, self._options.file_folders)
        if not is_s3(root):
            return plugins.store(root)
        kind = S3Store if self._options.transport == "aiobotocore" else DirectStore
        bucket = parse_url(root).bucket
        return kind(bucket, self._options, self._facts[bucket])

    def _retried(self, bare: ObjectStore, inner: ObjectStore) -> RetryStore:
        state, policy = self.state(bare.root), RetryPolicy(attempts_max=self._options.attempts_max)
        limits = RetryLimits(policy, self._options.whole_deadline_s, state.quota, state.concurrency.throttled)
        return RetryStore(inner, limits, self._clock, self._recorder)


def is_s3(root: str) -> bool:
    """Whether a root names a bucket of S3."""
    return root.startswith(f"{S3_SCHEME}://")
