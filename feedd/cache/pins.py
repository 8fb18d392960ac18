"""Pinned shards, and reads through a cache that may lose files at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar

from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.protocols import PinnedShards, ShardCache
    from feedd.values import ObjectRef, ShardFile

_T = TypeVar("_T")
_AGAIN_MAX: Final = 2


class Pins:
    """Pins on a set of shards: a ``PinnedShards``. Used on the event loop only."""

    def __init__(self, files: tuple[ShardFile, ...], release: Callable[[], None]) -> None:
        self._files = files
        self._release: Callable[[], None] | None = release

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """One file per requested ref, in that order; valid until released."""
        return self._files

    def release(self) -> None:
        """Drop the pins and the open files; a second call does nothing."""
        release, self._release, self._files = self._release, None, ()
        if release is not None:
            release()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the pins."""
        self.release()


async def with_pinned(
    cache: ShardCache,
    refs: Sequence[ObjectRef],
    read: Callable[[tuple[ShardFile, ...]], Awaitable[_T]],
    first: Callable[[], Awaitable[PinnedShards]] | None = None,
) -> _T:
    """Return the result of ``read`` on the files of ``refs``, which stay pinned meanwhile.

    If a file vanished or could not be read, that file is fetched again and ``read`` is called again, twice at most.

    Args:
        cache: the cache that acquires and drops the shards.
        refs: the shards to read.
        read: reads the files; may be called three times.
        first: acquires the shards the first time; None: the cache does.

    Raises:
        Whatever the cache and ``read`` raise; CacheUnavailable only the third time.
    """
    for _ in range(_AGAIN_MAX):
        try:
            with await (cache.acquire(refs) if first is None else first()) as pinned:
                return await read(pinned.files)
        except CacheUnavailable as error:
            first = None
            for ref in refs:
                if ref.url == error.object:
                    await cache.discard(ref)
    with await cache.acquire(refs) as pinned:
        return await read(pinned.files)
