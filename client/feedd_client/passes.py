"""Begins a pass: finds the topology, chooses how uneven ranks end, and checks that all ranks see the same data."""

from __future__ import annotations

import logging
import mmap
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torch import distributed as dist

from feedd_client.agreement import (
    LOOKAHEAD_MAX,
    Agreement,
    Join,
    compare_in_store,
    digest,
    group_store,
    process_group_ready,
)
from feedd_client.errors import BadOptionError, FeedError, TopologyError
from feedd_client.state import recipe_of
from feedd_client.topology import Topology, detect, folded, from_ranks, local_env

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd_client.agreement import GroupStore
    from feedd_client.epochs import Epochs
    from feedd_client.feeder import Feeder
    from feedd_client.iterator import PassPlan
    from feedd_client.opener import Consumer
    from feedd_client.options import FeedOptions
    from feedd_client.session import Position

_WORKERS_HINT: Final = (
    "use num_workers=0: feedd decodes outside the trainer, so workers gain nothing; or run feedd index on the data, so"
    " that the number of steps is known in advance; or pass uneven='allow'"
)
_NOT_COMPARED: Final = (
    "the %d ranks cannot compare the objects that they read, so different listings are not detected: %s. Call"
    " torch.distributed.init_process_group before the first pass, or read a frozen+ manifest"
)
_FROZEN: Final = "frozen+"
_warned: Final = mmap.mmap(-1, 1)
"""Whether this process, or one that shares this memory by a fork, has logged that ranks cannot compare."""
_log: Final = logging.getLogger("feedd_client")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Ranks:
    """This process's view of the other ranks. One object per dataset and process.

    Args:
        options: the dataset's options.
        explicit: topology that the user gave; None: it is found out.
        epochs: what the dataset's processes share.
        parent_store: the store of the parent's process group; None: it has none, or this process is no worker.

    Attributes:
        compared: whether this rank has compared its data with other ranks; None: there was nothing to compare yet.
    """

    def __init__(
        self, options: FeedOptions, explicit: Topology | None, epochs: Epochs, parent_store: GroupStore | None = None
    ) -> None:
        self._options = options
        self._epochs = epochs
        self._parent_store = parent_store
        self._explicit = explicit
        self._agreement: Agreement | None = None
        self.compared: bool | None = None

    def topology(self, *, in_worker: bool) -> Topology:
        """Return this process's topology, with a group of replicas as one rank. May ask the other ranks, once.

        Raises:
            TopologyError: launcher variables are missing or contradict each other, or groups and nodes do not fit.
        """
        return folded(self._process(in_worker=in_worker), self._options.replicas)

    def _process(self, *, in_worker: bool) -> Topology:
        if self._explicit is None:
            if not process_group_ready():
                return detect(os.environ)
            self._explicit = self.local_topology() or self._ask(in_worker=in_worker)
        return self._explicit

    @property
    def summary(self) -> str:
        """Rank and world size of this process in one line, as far as they are known. Asks no other rank."""
        try:
            found = self.local_topology() if process_group_ready() else self._explicit or detect(os.environ)
        except FeedError:
            return "rank unknown"
        if found is None:  # only the nodes are unknown
            return f"rank={dist.get_rank()}, world_size={dist.get_world_size()}"
        return f"rank={found.rank}, world_size={found.world_size}"

    @property
    def store(self) -> GroupStore | None:
        """The store of the process group of this process, or of the process that started it."""
        return group_store() or self._parent_store

    def local_topology(self) -> Topology | None:
        """Return the topology that is known without asking other ranks; None if there is none, or no process group."""
        if self._explicit is not None or not process_group_ready():
            return self._explicit
        rank, world_size = dist.get_rank(), dist.get_world_size()
        return Topology() if world_size == 1 else local_env(os.environ, rank, world_size)

    def uneven(self, topology: Topology, *, in_worker: bool) -> str:
        """Return the mode to request. For "auto" the daemon answers "drop" if it knows all sample counts, else "join".

        Raises:
            BadOptionError: the requested mode is impossible here; the hint names possible modes.
        """
        asked = self._options.uneven
        if asked is None and self._options.steps is not None:
            return "repeat"
        if asked in {"drop", "pad", "repeat"}:
            return asked
        if topology.world_size == 1 or asked == "allow":
            return "allow"
        if asked is None:
            return "auto"
        self.check_join(topology, in_worker=in_worker)
        return "join"

    def check_join(self, topology: Topology, *, in_worker: bool) -> None:
        """Check that all ranks can agree on a common end.

        Raises:
            BadOptionError: they cannot; the hint names possible modes.
        """
        if in_worker:
            raise BadOptionError(
                "expected the process that owns torch.distributed to iterate, got a DataLoader worker",
                object="uneven",
                hint=_WORKERS_HINT,
            )
        if not self._can_agree(topology):
            raise BadOptionError(
                f"expected torch.distributed with {topology.world_size} ranks to let all ranks end together, got none",
                object="uneven",
                hint="initialise torch.distributed first, run feedd index on the data, or pass uneven='allow'",
            )

    def agree(
        self, plan: PassPlan, feeder: Feeder, start: Position, consumer: Consumer, *, in_worker: bool
    ) -> PassPlan:
        """Compare data and position with all ranks, if a process group connects them, and choose how the pass ends.

        DataLoader workers compare through the store of their parent's group. Without a group, the first pass compares
        through torchrun's store, or logs that ranks cannot compare.

        Raises:
            RanksDisagree: data or positions differ.
        """
        session, topology = feeder.session, consumer.topology
        if topology.world_size == 1 or session is None:
            return plan
        if in_worker or not self._can_agree(topology):
            if consumer.index == 0 and self.compared is None:
                self._compare_without_group(session.granted.fingerprint, topology)
            return plan
        uneven = feeder.uneven
        print_bytes = session.granted.fingerprint.ljust(16, b"\0")
        facts = {
            "dataset fingerprint": digest(print_bytes),
            "recipe": digest(recipe_of(self._options), self._options.all_urls),
            "uneven": digest(uneven),
            "epoch": start.epoch,
            "step": start.step,
            "row": start.row,
        }
        if uneven in {"drop", "pad", "repeat"}:
            facts["number of steps"] = -1 if feeder.known_steps is None else feeder.known_steps
        steps = -1 if feeder.known_steps is None else feeder.known_steps
        spread = {"slots": session.slot_count, "free slots": session.free_count, "steps": steps}
        least = self._group().compare(facts, spread)
        self.compared = True
        if uneven != "join":
            return plan
        if least["steps"] >= 0:
            return replace(plan, step_limit=max(least["steps"] - start.step, 0))
        # The trainer holds one slot while it asks for the next, and the daemon fills one while the lookahead waits.
        lookahead = min(LOOKAHEAD_MAX, least["slots"] - 3, least["free slots"] - 1)
        return replace(plan, join=Join(self._group(), max(0, lookahead)))

    def _compare_without_group(self, fingerprint: bytes, topology: Topology) -> None:
        """Compare this rank's data through a store; log it once, for all workers of this rank, if that is not possible.

        Raises:
            RanksDisagree: another rank sees other data.
            TopologyError: torchrun's variables name several nodes, but not where its ranks meet.
        """
        options = self._options
        size = (topology.world_size, topology.node_count, options.wire_batch_size, options.partitions)
        name = f"{digest(recipe_of(options), options.all_urls, options.samples, size):x}"
        why_not = compare_in_store(os.environ, topology.world_size * options.replicas, name, fingerprint, self.store)
        self.compared = not why_not
        frozen = all(url.startswith(_FROZEN) for url in options.all_urls)  # nodes list nothing
        if why_not and not frozen and self._explicit is None and _is_torchrun_without_address(os.environ):
            raise TopologyError(
                f"expected MASTER_ADDR with torchrun's other variables, got none: its {topology.world_size} ranks on"
                " several nodes cannot compare the objects that they read",
                object="MASTER_ADDR",
                hint="start with torchrun, initialise torch.distributed, read a frozen+ manifest, or pass topology=",
            )
        if why_not and not frozen and self._epochs.first_warning() and not _warned[0]:
            _warned[0] = 1
            _log.warning(_NOT_COMPARED, topology.world_size, why_not)

    def _can_agree(self, topology: Topology) -> bool:
        return process_group_ready() and dist.get_world_size() == topology.world_size * self._options.replicas

    def _group(self) -> Agreement:
        if self._agreement is None:
            self._agreement = Agreement(self._options.open_timeout_s + self._options.reconnect_timeout_s)
        return self._agreement

    def _ask(self, *, in_worker: bool) -> Topology:
        if in_worker:
            raise TopologyError(
                "expected LOCAL_RANK and LOCAL_WORLD_SIZE in a DataLoader worker, got neither",
                hint="pass topology=Topology(...), or use num_workers=0",
            )
        boot = _BOOT_ID.read_text(encoding="ascii") if _BOOT_ID.exists() else ""
        hosts = self._group().gather([digest(socket.gethostname(), boot)])
        return from_ranks(dist.get_rank(), [host[0] for host in hosts])


def _is_torchrun_without_address(env: Mapping[str, str]) -> bool:
    """Whether torchrun's variables name several nodes without its address: nothing could connect them."""
    return env.get("GROUP_WORLD_SIZE", "1") != "1" and "MASTER_ADDR" not in env
