"""The base of FeedDataset: the parts that belong to one process, and the dataset's ``repr``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from feedd_client import accelerated
from feedd_client.asking import Asker
from feedd_client.leases import PrivateCopies
from feedd_client.passes import Ranks
from feedd_client.runtime import Runtime
from feedd_client.stats import LoaderStats

if TYPE_CHECKING:
    from feedd_client.agreement import GroupStore
    from feedd_client.epochs import Epochs
    from feedd_client.options import FeedOptions
    from feedd_client.topology import Topology


class DatasetBase(IterableDataset[Any]):
    """The parts of a dataset that belong to one process; a forked or unpickled copy creates them anew."""

    _options: FeedOptions
    _address: str | None
    _topology: Topology | None
    _epochs: Epochs
    _parent_store: GroupStore | None = None
    _topology_state: dict[str, int]

    @property
    def yields_batches(self) -> bool:
        """Whether iterating yields batches rather than single samples."""
        return self._options.batch_size is not None

    @property
    def replicas(self) -> int:
        """Number of consecutive ranks that read the same batches."""
        return self._options.replicas

    def __repr__(self) -> str:
        return f"FeedDataset({self._options.summary}, {self._ranks.summary})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_runtime", "_ranks", "_stats", "_asker"):
            del state[name]
        # A spawned worker has no process group to ask.
        state["_topology"], state["_parent_store"] = self._ranks.local_topology(), self._ranks.store
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_process_state()

    def __del__(self) -> None:
        if "_runtime" in self.__dict__ and not sys.is_finalizing():
            self._runtime.close()  # its lock guards assignments only, so a finalizer never waits for it

    def _reset_process_state(self) -> None:
        accelerated.adapt(DatasetBase)
        self._runtime = Runtime(self._address, PrivateCopies(self._options.copy_bytes))
        self._ranks = Ranks(self._options, self._topology, self._epochs, self._parent_store)
        self._stats = LoaderStats()
        self._asker = Asker(self._options, self._ranks, self._runtime)
