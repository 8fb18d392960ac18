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
    """Groups of objects by URL prefix, the longest match wins; what matches none is bounded by the cache alone."""

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        """Take limits in bytes on disk by URL prefix, such as ``s3://bucket/train/``.

        Raises:
            ValueError: an empty prefix, or a limit that is not above 0.
        """
        for prefix, limit_bytes in (limits or {}).items():
            if not prefix:
                raise ValueError("expected the URL prefix of a quota, got an empty one: that is the size of the cache")
            if limit_bytes <= 0:
                raise ValueError(f"expected a quota above 0 bytes for {prefix}, got {limit_bytes}")
        self._limits = dict(sorted((limits or {}).items(), key=lambda item: len(item[0]), reverse=True))

    def __repr__(self) -> str:
        return f"Quotas({', '.join(f'{prefix}: {format_size(size)}' for prefix, size in self._limits.items())})"

    def group(self, ref: ObjectRef) -> str:
        """Return the prefix the object counts against; empty: none."""
        if not self._limits:
            return NO_GROUP
        url = ref.url
        return next((prefix for prefix in self._limits if url.startswith(prefix)), NO_GROUP)

    def limit_bytes(self, group: str) -> int | None:
        """Return what a group may take; None: as much as the cache holds."""
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
    """Return what to raise where ``refs`` can never be held together within a quota."""
    return CacheTooSmall(
        f"expected {len(refs)} shards of {format_size(needed_bytes)} to fit together into the quota of {quota}, "
        f"got a limit of {format_size(limit_bytes)}",
        object=refs[0].url if len(refs) == 1 else quota,
        hint=f'raise cache.quotas."{quota}" or shrink the shuffle window',
        stage="cache",
    )
