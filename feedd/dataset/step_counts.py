"""The number of steps of every rank of a run, so that all have the same number."""

from __future__ import annotations

import enum
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.dataset.sharding import KEY, REPLICATED, SAMPLE, SIZE, check_equal_ranks
from feedd.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from feedd.dataset.assignment import Partitioning
    from feedd.values import Topology


class Uneven(enum.Enum):
    """How the steps of all ranks are made equal."""

    DROP = "drop"  # samples that would make some rank's last steps short or missing are left out
    PAD = "pad"  # partitions that end early begin again, and mark each repeated sample
    REPEAT = "repeat"  # the same, but without marks
    JOIN = "join"  # ranks end together when the first runs out, by agreeing among themselves
    ALLOW = "allow"  # every rank ends with its samples
    AUTO = "auto"  # drop if the counts of all shards are known, else join


def parse_uneven(name: str) -> Uneven:
    """Return the policy of that name.

    Raises:
        BadRequest: there is no such policy.
    """
    try:
        return Uneven(name)
    except ValueError:
        names = ", ".join(one.value for one in Uneven)
        raise BadRequest(f"expected uneven to be one of {names}, got {name!r}", object="uneven", stage="plan") from None


UNEQUAL = {Uneven.JOIN, Uneven.ALLOW}


class CountColumn(MutableMapping[int, int]):
    """Sample counts by dataset index in 8 bytes each, where a dict takes 100.

    Args:
        samples: int64[shards], samples of each shard; -1: not known. The column takes the array over.

    Attributes:
        samples: as given.
    """

    def __init__(self, samples: NDArray[np.int64]) -> None:
        self.samples = samples
        self._known_count = int((samples >= 0).sum())

    def __repr__(self) -> str:
        return f"CountColumn({self._known_count} of {len(self.samples)} known)"

    def __getitem__(self, shard: int) -> int:
        found = int(self.samples[shard]) if 0 <= shard < len(self.samples) else -1
        if found < 0:
            raise KeyError(shard)
        return found

    def __setitem__(self, shard: int, sample_count: int) -> None:
        assert shard >= 0, f"expected a dataset index, got {shard}"
        self._known_count += self.samples[shard] < 0
        self.samples[shard] = sample_count

    def __delitem__(self, shard: int) -> None:
        raise TypeError(f"expected counts to stay known, got a removal of shard {shard}")

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.samples >= 0).tolist())

    def __len__(self) -> int:
        return self._known_count


def known_counts(counts: Mapping[int, int], shard_count: int) -> NDArray[np.int64] | None:
    """Return the samples of all shards, int64[shards], or None if a count is not known."""
    if len(counts) < shard_count:
        return None
    if isinstance(counts, CountColumn):
        return counts.samples
    return np.fromiter((counts[shard] for shard in range(shard_count)), np.int64, shard_count)


def partition_samples(cut: Partitioning, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the samples of each partition of the whole dataset, int64[partitions]."""
    parts = cut.partition_count
    if cut.how == SAMPLE:
        edges = int(counts.sum()) * np.arange(parts + 1) // parts
        return np.diff(edges)
    if cut.how == REPLICATED:
        return np.full(parts, counts.sum())
    assert cut.how in {KEY, SIZE}
    owners = np.arange(sizes.shape[0]) % parts if cut.how == KEY else cut.owners_of(sizes, parts)
    return np.bincount(owners, counts, minlength=parts).astype(np.int64)


def common_steps(uneven: Uneven, samples: NDArray[np.int64], batch_size: int, topology: Topology) -> int:
    """Return the steps of every rank.

    Args:
        uneven: DROP, PAD or REPEAT.
        samples: samples of each partition of the whole dataset, int64[partitions].
        batch_size: samples of a rank's step.
        topology: topology with the same number of ranks on all nodes.

    Raises:
        BadRequest: a partition has no samples to fill its steps with, or nodes differ.
    """
    check_equal_ranks(topology, f"uneven={uneven.value!r}", "use uneven='join' or 'allow'")
    per_step = batch_size * topology.world_size // samples.shape[0]
    if uneven is Uneven.DROP:
        return int((samples // per_step).min())
    if samples.max() and not samples.min():
        raise BadRequest(
            f"expected samples in all {samples.shape[0]} partitions for uneven={uneven.value!r}, got none in"
            f" {int((samples == 0).sum())} of them",
            hint="use sharding='sample', or more and smaller shards",
            stage="plan",
        )
    return int((-(-samples // per_step)).max())


@dataclass(frozen=True, slots=True)
class Deal:
    """How a node's samples are dealt out to its ranks.

    Attributes:
        batch_size: samples of a rank's step.
        local_rank: the rank.
        local_world_size: ranks of the node.
        steps: steps of every rank; None: until its samples end.
        wrap: a partition that ends earlier begins again.
    """

    batch_size: int
    local_rank: int
    local_world_size: int
    steps: int | None = None
    wrap: bool = False


def left_out(samples: NDArray[np.int64], steps: int, deal: Deal) -> int:
    """Return the number of samples that one rank would get after the first ``steps`` steps.

    Args:
        samples: samples of each partition of the rank's node, int64[partitions].
        steps: steps of the epoch.
        deal: how the samples of the node are dealt out.
    """
    part = deal.batch_size * deal.local_world_size // samples.shape[0]
    left = np.maximum(samples - steps * part, 0)
    # Further steps in which a partition gives its whole part, and the samples it gives in one more step.
    whole, rest = np.divmod(left, part)
    by_end = np.argsort(whole)
    whole, rests = whole[by_end], np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(rest[by_end])])
    # between two edges all steps are alike
    edges = np.array(sorted({0, *whole.tolist(), *(whole + 1).tolist()}))
    ending, going = np.searchsorted(whole, edges, "left"), np.searchsorted(whole, edges, "right")
    given = part * (samples.shape[0] - going) + rests[going] - rests[ending]
    mine = np.clip(given - deal.local_rank * deal.batch_size, 0, deal.batch_size)
    return int((mine[:-1] * np.diff(edges)).sum())


def needs_counts(uneven: Uneven) -> Unsupported:
    """Return the error to raise if equal steps cannot be computed."""
    return Unsupported(
        f"expected the sample counts of all shards for uneven={uneven.value!r}, got those of some",
        hint="run feedd index on the data, pass steps=, or use uneven='join'",
        stage="plan",
    )
