"""A resolved dataset: the ordered objects and what has been learned of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.plan.fingerprint import fingerprint, listing_digest
from feedd.plan.sharding import assign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.values import FieldRecipe, ObjectRef, OpenSpec


@dataclass(slots=True)
class Listing:
    """One listing of one set of URLs.

    Attributes:
        refs: the objects, in the dataset's order; a shard's dataset index is its place here.
        sizes: int64[shards], bytes.
        digest: over keys, sizes and ETags.
        listed_s: monotonic time of the listing.
        counts: sample counts by dataset index, as far as shards have been indexed.
    """

    refs: tuple[ObjectRef, ...]
    sizes: NDArray[np.int64]
    digest: bytes
    listed_s: float
    counts: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, refs: Sequence[ObjectRef], listed_s: float) -> Listing:
        """Build from the refs; hashes every key, so call it off the event loop when there are many."""
        sizes = np.fromiter((ref.size_bytes for ref in refs), dtype=np.int64, count=len(refs))
        return cls(tuple(refs), sizes, listing_digest(refs), listed_s)

    def assigned(self, spec: OpenSpec) -> NDArray[np.int64]:
        """Return the dataset indices of the node that the spec's rank lives on."""
        return assign(self.sizes, spec.topology.node_count, spec.topology.node_rank, spec.sharding)

    def fingerprint(self, spec: OpenSpec, recipes: Sequence[FieldRecipe], window_shards: int) -> bytes:
        """Return 16 bytes over everything that decides which samples a step of the run holds."""
        facts: dict[str, object] = {
            "fields": [[recipe.name, list(recipe.sources), recipe.codec, recipe.params] for recipe in recipes],
            "batch_size": spec.batch_size,
            "sharding": spec.sharding,
            "shuffle": [spec.shuffle, window_shards if spec.shuffle else 1],
            "seed": spec.seed,
            "world_size": spec.topology.world_size,
            "node_count": spec.topology.node_count,
        }
        return fingerprint(self.digest, facts)
