"""Which objects a node reads in an epoch of a channel, and in which order: a pure function.

SageMaker documents that ``ShardedByS3Key`` gives each of N nodes about M/N of M objects, and that ``ShuffleConfig``
shuffles anew in each epoch, before the objects are dealt out. It documents neither rule exactly. The rules here:

1. The list is the channel's objects in the order of the listing or manifest; of an augmented manifest, its lines.
2. With a seed, the list is permuted by random numbers that depend on seed, epoch and the digest of the list.
3. With ``ShardedByS3Key``, element i of that order goes to node i mod N.

All nodes must see the same list. ``digest`` tells whether they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.channels.channel import Distribution
from feedd.ordering import rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.channels.channel import Channel


def epoch_order(count: int, seed: int | None, epoch: int, digest: bytes) -> NDArray[np.int64]:
    """Return the order of all ``count`` elements in an epoch, as indices into the list.

    Args:
        count: length of the list.
        seed: ``ShuffleConfig.Seed``; None: the order of the list, in every epoch.
        epoch: number of the epoch, from 0.
        digest: digest of the list, of 8 bytes or more (``dataset.fingerprint.listing_digest``).
    """
    if seed is None:
        return np.arange(count, dtype=np.int64)
    words = (int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8))
    return rng.permutation(count, rng.derive(rng.CHANNELS, seed, epoch, *words))


@dataclass(frozen=True, slots=True)
class EpochList:
    """What one node reads of a channel.

    Attributes:
        count: length of the list.
        digest: digest of the list; all nodes must have the same.
        seed: ``ShuffleConfig.Seed``; None: no shuffling.
        node_count: number of nodes that share the list; 1: this node reads all of it.
        node_rank: rank of this node among them.
    """

    count: int
    digest: bytes
    seed: int | None = None
    node_count: int = 1
    node_rank: int = 0

    @classmethod
    def of(cls, channel: Channel, count: int, digest: bytes, node_count: int, node_rank: int) -> EpochList:
        """Return what a node of ``node_count`` nodes reads of a channel whose list has ``count`` elements."""
        if channel.distribution is Distribution.REPLICATED:
            node_count, node_rank = 1, 0
        return cls(count, digest, channel.seed, node_count, node_rank)

    def indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the elements of this node in an epoch, in reading order, as indices into the list.

        File mode reads epoch 0.
        """
        return epoch_order(self.count, self.seed, epoch, self.digest)[self.node_rank :: self.node_count]
