"""Pinned shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.values import ShardFile


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
        """Drop the pins; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the pins."""
        self.release()
