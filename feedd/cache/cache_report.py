"""Reports of the cache: entries and statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One whole object on disk, for listings.

    Attributes:
        url: the object's URL, as a user would type it.
        etag: the object's version.
        size_bytes: length of the object; the file is larger by a header and block rounding.
        pins: current pins; 0 in listings made without the owner of the directory.
        conversion: the conversion that made the entry from the object; empty: the object itself.
    """

    url: str
    etag: str
    size_bytes: int
    pins: int = 0
    conversion: str = ""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of gauges, and counts since the cache was opened.

    Attributes:
        limit_bytes: disk bytes the cache may take: the configured size, or less if the disk is smaller.
        committed_bytes: disk bytes of whole entries.
        reserved_bytes: disk bytes reserved by running fills.
        entry_count: whole entries.
        pin_count: pins held.
        waiting_count: acquirers waiting for space now.
        hits: objects found whole when acquired.
        misses: objects that had to be fetched, or whose fetch was still running.
        evictions: entries removed to make room.
        filled_bytes: object bytes fetched.
        fill_s: time of all fills, summed.
        space_wait_s: time that acquirers waited for space, summed.
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
