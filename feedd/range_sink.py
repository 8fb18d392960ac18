"""The seam between what receives the bytes of a range and the place that keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class RangeSink(Protocol):
    """Where the bytes of a range go: a piece of a cache file, or of memory.

    After a store's ``read_into`` has returned or raised, the store writes no more.
    """

    @property
    def size_bytes(self) -> int:
        """Length of the range."""

    @property
    def waits_for_disk(self) -> bool:
        """Whether reading or writing may wait for a disk, which the event loop must not do."""

    def part(self, start: int, end: int) -> RangeSink:
        """Return the sink of some of these bytes."""

    async def write(self, at: int, data: bytes | memoryview) -> None:
        """Write bytes at an offset of the sink.

        Raises:
            CacheUnavailable: the cache file cannot be written.
        """

    def read(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces, each valid until the next. Blocks if ``waits_for_disk``.

        Raises:
            OSError: the file cannot be read.
        """
