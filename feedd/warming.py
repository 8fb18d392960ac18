"""Request and progress of warming a cache: frozen value types, as in ``values``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from feedd.owner import Owner


@dataclass(frozen=True, slots=True)
class WarmSpec:
    """The objects to fetch into the cache in advance.

    Attributes:
        urls: prefixes, objects, or ``manifest+s3://…``.
        node_count: nodes that share the data; 1: all objects.
        node_rank: the node whose assignment is fetched.
        sharding: "key", "replicated" or "size".
        fit: fill a cache that is too small with the objects that fit.
        owner: who asks; the server sets it.
        fields: as in ``OpenSpec``: only the columns of these fields are converted from columnar objects; empty: all.
            Large files of tokens need the recipe that cuts them.
    """

    urls: tuple[str, ...]
    node_count: int = 1
    node_rank: int = 0
    sharding: str = "key"
    fit: bool = False
    fields: tuple[tuple[str, str], ...] = ()
    owner: Owner = field(default_factory=Owner.of_this_process)

    def in_lane(self, lane: int, lane_count: int) -> WarmSpec:
        """Return what one of a node's lanes fetches; see ``Topology.in_lane``."""
        if lane_count == 1:
            return self
        if self.sharding == "replicated":  # each node has all objects, and its lanes split them
            return replace(self, sharding="key", node_count=lane_count, node_rank=lane)
        node_rank = lane * self.node_count + self.node_rank
        return replace(self, node_count=self.node_count * lane_count, node_rank=node_rank)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of objects and their bytes."""

    object_count: int = 0
    size_bytes: int = 0

    def plus(self, size_bytes: int) -> Amount:
        """Return the amount plus one object."""
        return Amount(self.object_count + 1, self.size_bytes + size_bytes)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.object_count + other.object_count, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """Progress of a warm-up. In the end every object is in one of the amounts after the first.

    Attributes:
        total: the assignment, each object once.
        present: objects that were in the cache before.
        warmed: fetched objects.
        left_out: objects without room.
        failed: objects that could not be fetched; each was reported with its error.
    """

    total: Amount
    present: Amount = field(default_factory=Amount)
    warmed: Amount = field(default_factory=Amount)
    left_out: Amount = field(default_factory=Amount)
    failed: Amount = field(default_factory=Amount)

    def __add__(self, other: WarmProgress) -> WarmProgress:
        return WarmProgress(
            self.total + other.total,
            self.present + other.present,
            self.warmed + other.warmed,
            self.left_out + other.left_out,
            self.failed + other.failed,
        )
