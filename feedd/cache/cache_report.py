"""What the cache says about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One whole object on disk, for listings.

    Attributes:
        url: what a user would type to name the object.
        etag: its version.
        size_bytes: length of the object; on disk it takes a header and block rounding more.
        pins: how many hold it now; 0 in listings made without the owner.
        form: how it was made of the object; empty: it is the object.
    """

    url: str
    etag: str
    size_bytes: int
    pins: int = 0
    form: str = ""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of gauges, and counts since the cache was opened.

    Attributes:
        limit_bytes: disk bytes the cache may take: the configured size, or less where the disk is smaller.
        committed_bytes: disk bytes of whole entries.
        reserved_bytes: disk bytes claimed by fills under way.
        entry_count: whole entries.
        pin_count: pins held.
        waiting_count: acquirers waiting for space now.
        hits: objects found whole when acquired.
        misses: objects that had to be fetched, or whose fetch was still running.
        evictions: entries removed to make room.
        filled_bytes: object bytes fetched.
        fill_s: time fills took, summed over all fills.
        space_wait_s: time acquirers waited for space, summed.
    """

    limit_bytes: int
    committed_bytes: int
    reserved_bytes: int
    entry_count: int
    pin_count: int
    waiting_count: int
    hits: int
    misses: int
    evictions: int
    filled_bytes: int
    fill_s: float
    space_wait_s: float
