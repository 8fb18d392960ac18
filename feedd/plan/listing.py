"""A resolved dataset: the ordered objects and what has been learned of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.plan.fingerprint import fingerprint, listing_digest
from feedd.plan.share import Cut
from feedd.plan.steps import UNEQUAL, Uneven, common_steps, known_counts, needs_counts, partition_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.plan.share import Share
    from feedd.values import FieldRecipe, ObjectRef, OpenSpec


@dataclass(slots=True)
class Listing:
    """One listing of one set of URLs.

    Attributes:
        refs: the objects, in the dataset's order; a shard's dataset index is its place here.
        sizes: int64[shards], bytes.
        digest: over keys, sizes and ETags.
        listed_s: monotonic time of the listing.
        counts: sample counts by dataset index, as far as they are known.
        indexed: whether an index object tells them all: every daemon that lists the data then knows the same.
        firsts: the first dataset index of each source; of several, one lies behind another.
        twins: int64[shards], of each shard the first that is the same object; None: it is not looked for, or none is.
    """

    refs: tuple[ObjectRef, ...]
    sizes: NDArray[np.int64]
    digest: bytes
    listed_s: float
    counts: dict[int, int] = field(default_factory=dict)
    indexed: bool = False
    firsts: tuple[int, ...] = (0,)
    twins: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, refs: Sequence[ObjectRef], listed_s: float, firsts: tuple[int, ...] = (0,)) -> Listing:
        """Build from the refs; hashes every key, so call it off the event loop when there are many."""
        sizes = np.fromiter((ref.size_bytes for ref in refs), dtype=np.int64, count=len(refs))
        twins = _twins(refs) if len(firsts) > 1 else None  # two sources may well be the same data
        return cls(tuple(refs), sizes, listing_digest(refs), listed_s, firsts=firsts, twins=twins)

    def shards_of(self, source: int) -> range:
        """Return the dataset indices of one source."""
        ends = (*self.firsts[1:], len(self.refs))
        return range(self.firsts[source], ends[source])

    def index(self, counts: Mapping[int, int]) -> None:
        """Take counts from an index object; who opens from here on may be told another policy."""
        self.counts.update(counts)
        self.indexed = len(counts) == len(self.refs)

    def settled(self, uneven: Uneven) -> Uneven:
        """Return the policy, of AUTO the one it comes to: the same for all who open this listing: ranks must agree."""
        if uneven is not Uneven.AUTO:
            return uneven
        return Uneven.DROP if self.indexed else Uneven.JOIN

    def cut(self, spec: OpenSpec) -> Cut:
        """Return how the spec wants the dataset cut.

        Raises:
            BadRequest: partitions and topology do not go together.
        """
        return Cut.of(spec.sharding, spec.partitions, spec.batch_size, spec.topology)

    def shares(self, spec: OpenSpec) -> tuple[Share, ...]:
        """Return the partitions of the node that the spec's rank lives on.

        Raises:
            BadRequest: see ``Cut``.
        """
        return self.cut(spec).shares(self.sizes, self.counts, spec.topology.node_count, spec.topology.node_rank)

    def steps(self, spec: OpenSpec, uneven: Uneven) -> int | None:
        """Return the steps of every rank; None: not the same for all, or not known ahead.

        Raises:
            BadRequest, Unsupported: they are wanted, and cannot be told.
        """
        if spec.steps:
            return spec.steps
        if uneven in UNEQUAL:
            return None
        counts = known_counts(self.counts, len(self.refs))
        if counts is None:
            raise needs_counts(uneven)
        samples = partition_samples(self.cut(spec), self.sizes, counts)
        return common_steps(uneven, samples, spec.batch_size, spec.topology)

    def fingerprint(
        self,
        spec: OpenSpec,
        recipes: Sequence[FieldRecipe],
        window_shards: int,
        mix: Mapping[str, object] | None = None,
    ) -> bytes:
        """Return 16 bytes over everything that decides which samples a step of the run holds.

        Not in it: how the samples of a step are dealt out to ranks and nodes, which may change when a run resumes.

        Args:
            spec: what was asked for.
            recipes: of the fields; of several sources they are among the facts of ``mix``.
            window_shards: shards per shuffle window.
            mix: facts of a mixture.
        """
        facts: dict[str, object] = {
            "fields": recipe_facts(recipes),
            "step_samples": spec.batch_size * spec.topology.world_size,
            "partitions": spec.partitions or spec.topology.node_count,
            "sharding": spec.sharding,
            "shuffle": [spec.shuffle, window_shards if spec.shuffle else 1, spec.window_bytes],
            "seed": spec.seed,
        }
        if mix is not None:
            facts["mix"] = {**mix, "firsts": list(self.firsts)}
        return fingerprint(self.digest, facts)


def _twins(refs: Sequence[ObjectRef]) -> NDArray[np.int64] | None:
    first: dict[tuple[str, str], int] = {}
    found = [first.setdefault((ref.root, ref.key), number) for number, ref in enumerate(refs)]
    return np.array(found, dtype=np.int64) if len(first) < len(refs) else None


def recipe_facts(recipes: Sequence[FieldRecipe]) -> list[object]:
    """Return what of a recipe decides what a batch holds."""
    return [[recipe.name, list(recipe.sources), recipe.codec, recipe.params] for recipe in recipes]
