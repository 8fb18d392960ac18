"""What warming a cache is asked for and what it tells: nouns, as in ``values``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WarmSpec:
    """What is to be brought into the cache ahead of its use.

    Attributes:
        urls: prefixes, objects, or ``manifest+s3://…``.
        node_count: nodes that share the data; with 1 everything is meant.
        node_rank: the node whose assignment is meant.
        sharding: "key", "replicated" or "size".
        fit: whether a cache too small for all is taken as it is, and filled with what fits.
        fields: as in ``OpenSpec``: of columnar objects only their columns are made; empty: all.
    """

    urls: tuple[str, ...]
    node_count: int = 1
    node_rank: int = 0
    sharding: str = "key"
    fit: bool = False
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Amount:
    """So many objects of so many bytes."""

    object_count: int = 0
    size_bytes: int = 0

    def plus(self, size_bytes: int) -> Amount:
        """Return the amount with one object more."""
        return Amount(self.object_count + 1, self.size_bytes + size_bytes)


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """How far a warming has come: in the end every object is in one of the amounts after the first.

    Attributes:
        total: the assignment, each object once.
        present: was in the cache before.
        warmed: brought there.
        left_out: found no room.
        failed: could not be had; each was told with its error.
    """

    total: Amount
    present: Amount = field(default_factory=Amount)
    warmed: Amount = field(default_factory=Amount)
    left_out: Amount = field(default_factory=Amount)
    failed: Amount = field(default_factory=Amount)
