"""The fields of a listing's shards, as far as the shards have been indexed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    Unread = Sequence[tuple[str, str]]

_NAMES_MAX: Final = 1000
_SETS_MAX: Final = 1000


class FieldNames:
    """Field names by source, with the first shard that had each. It only grows, up to a bound."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[int, str]] = {}
        self._seen: set[tuple[int, tuple[str, ...], Unread]] = set()

    def __len__(self) -> int:
        return len(self._first)

    def add(self, source: int, shard: int, fields: tuple[str, ...], unread: tuple[tuple[str, str], ...] = ()) -> None:
        """Add a shard's fields, and names and types of columns that no field can read. Most shards add nothing new."""
        if (source, fields, unread) in self._seen:
            return
        if len(self._seen) < _SETS_MAX:
            self._seen.add((source, fields, unread))
        for name, kind in (*((name, "") for name in fields), *((name.lower(), kind) for name, kind in unread)):
            if len(self._first) >= _NAMES_MAX:
                break
            self._first.setdefault((source, name), (shard, kind))

    def beyond(self, source: int, known: Collection[str]) -> Iterator[tuple[str, str, int]]:
        """Yield a source's names beyond ``known``: name, its type if no field can read it, and the shard."""
        for (its, name), (shard, kind) in self._first.items():
            if its == source and name not in known:
                yield name, kind, shard
