"""How much of the cache each dataset may take. Pure; read from the configuration, so a restart changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.errors import CacheTooSmall
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from feedd.values import ObjectRef

NO_GROUP = ""


class Quotas:
    """Groups of objects by URL prefix; the longest match wins. Only the cache's limit bounds all other objects."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        """Take limits in disk bytes by URL prefix, such as ``s3://bucket/train/``.

        Raises:
            ValueError: a prefix is empty, or a limit is not above 0.
        """
        for prefix, limit_bytes in (limits or {}).items():
            if not prefix:
                raise ValueError(
                    "expected the URL prefix of a quota, got an empty prefix: use the cache's size instead"
                )
            if limit_bytes <= 0:
                raise ValueError(f"expected a quota above 0 bytes for {prefix}, got {limit_bytes}")
        self._limits = dict(sorted((limits or {}).items(), key=lambda item: len(item[0]), reverse=True))

    def __repr__(self) -> str:
        return f"Quotas({', '.join(f'{prefix}: {format_size(size)}' for prefix, size in self._limits.items())})"

    def group(self, ref: ObjectRef) -> str:
        """Return the prefix that the object counts against; empty: none."""
        if not self._limits:
            return NO_GROUP
        url = ref.url
        return next((prefix for prefix in self._limits if url.startswith(prefix)), NO_GROUP)

    def limit_bytes(self, group: str) -> int | None:
        """Return the byte limit of a group; None: only the cache's own limit."""
        return self._limits.get(group)

    def sums(self, sizes: Iterable[tuple[ObjectRef, int]]) -> dict[str, int]:
        """Return the bytes of each group that has a quota."""
        found: dict[str, int] = {}
        if self._limits:
            for ref, size_bytes in sizes:
                group = self.group(ref)
                if group != NO_GROUP:
                    found[group] = found.get(group, 0) + size_bytes
        return found


def too_small(refs: Sequence[ObjectRef], quota: str, needed_bytes: int, limit_bytes: int) -> CacheTooSmall:
    """Return the error to raise if ``refs`` can never fit together into a quota."""
    return CacheTooSmall(
        f"{unfitting(len(refs), needed_bytes)} into the quota of {quota}, which is {format_size(limit_bytes)}",
        object=refs[0].url if len(refs) == 1 else quota,
        hint=f'raise cache.quotas."{quota}" or shrink the shuffle window',
        stage="cache",
    )


def unfitting(shard_count: int, needed_bytes: int) -> str:
    """Return the words of an error that say which shards do not fit."""
    size = format_size(needed_bytes)
    return (
        f"1 shard of {size} does not fit" if shard_count == 1 else f"{shard_count} shards of {size} do not fit together"
    )
