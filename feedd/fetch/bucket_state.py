"""Recent behaviour of one bucket, shared by everything that sends requests to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.fetch.concurrency_limit import ConcurrencyLimit
from feedd.fetch.hedge_policy import HedgePolicy, Hedger
from feedd.fetch.part_sizes import PartSize
from feedd.fetch.retry_quota import RetryQuota

if TYPE_CHECKING:
    from feedd.fetch.fetch_options import SourceOptions


class BucketState:
    """The state machines of one bucket.

    Attributes:
        quota: how many requests may be retried.
        concurrency: how many parts may be in flight.
        hedger: which parts are requested twice.
        sizes: how large parts are.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.quota = RetryQuota()
        self.concurrency = ConcurrencyLimit(options.parts_in_flight)
        self.sizes = PartSize(options.part_size_bytes, options.parts_in_flight, options.bytes_in_flight)
        policy = HedgePolicy(share=options.hedge_share, initial_bytes=8 * self.sizes.aim_bytes)
        self.hedger = Hedger(policy) if options.hedge_share else None

    def __repr__(self) -> str:
        return f"BucketState({self.quota!r}, {self.concurrency!r})"
