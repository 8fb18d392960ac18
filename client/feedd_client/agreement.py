"""Collective decisions of all ranks, made with plain integers over a separate gloo group."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout

from feedd_client.errors import RanksDisagree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log: Final = logging.getLogger("feedd_client")
_SLOW_S: Final = 30.0
_SLOW: Final = (
    "waiting for the other ranks to begin this pass: every rank must iterate; for a rank that reads alone pass"
    " topology=Topology()"
)
STORE_S: Final = 10.0
"""Longest wait for the launcher's store, with the lookup of its name."""
LOOKAHEAD_MAX: Final = 2
AT_END: Final = -1
# sent per step: the rows of a batch plus one, so that a batch without rows differs from the end
_OVER: Final = 0
_LEFT: Final = -1


def process_group_ready() -> bool:
    """Return whether torch.distributed is available and initialised in this process."""
    return dist.is_available() and dist.is_initialized()


class GroupStore(NamedTuple):
    """The store of a process group, for processes that cannot use the group: DataLoader workers.

    Attributes:
        host: where rank 0 serves it.
        port: its port.
        rank: rank in the group.
        process_count: size of the group.
    """

    host: str
    port: int
    rank: int
    process_count: int


def group_store() -> GroupStore | None:
    """Return the store of this process's group, or of the process that it was forked from; None: there is none."""
    if not process_group_ready():
        return None
    store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    while hasattr(store, "underlying_store"):  # a prefix in front of another store
        store = store.underlying_store
    if not hasattr(store, "port"):  # of a file, or within the process
        return None
    return GroupStore(store.host, store.port, dist.get_rank(), dist.get_world_size())


class Agreement:
    """A gloo group of all ranks. Every rank must make the same calls in the same order."""

    def __init__(self, timeout_s: float) -> None:
        """Create the group. A rank waits for the others as long as torch.distributed does, at least ``timeout_s``.

        A slow rank may be waiting for its daemon, or may be busy with evaluation and checkpoints.
        """
        limit = max(timedelta(seconds=timeout_s), default_pg_timeout)
        self._group: Any = dist.new_group(backend="gloo", timeout=limit)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def gather(self, values: list[int]) -> list[list[int]]:
        """Return every rank's ``values``, by rank."""
        mine = torch.tensor(values, dtype=torch.int64, device="cpu")
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        slow = threading.Timer(_SLOW_S, _log.warning, (_SLOW,))
        slow.daemon = True
        slow.start()
        try:
            with answers():
                dist.all_gather(everyone, mine, group=self._group)
        finally:
            slow.cancel()
        return [theirs.tolist() for theirs in everyone]

    def compare(self, facts: Mapping[str, int], spread: Mapping[str, int]) -> dict[str, int]:
        """Return the least of each ``spread`` value over all ranks.

        Raises:
            RanksDisagree: a fact differs between ranks; names it and the first rank that differs.
        """
        everyone = self.gather([*facts.values(), *spread.values()])
        for column, name in enumerate(facts):
            for rank, values in enumerate(everyone):
                if values[column] != everyone[0][column]:
                    raise RanksDisagree(
                        f"expected the same {name} on all ranks, got {everyone[0][column]:x} on rank 0"
                        f" and {values[column]:x} on rank {rank}",
                        object=name,
                        hint="all ranks must read the same objects with the same arguments, from the same position",
                    )
        return {name: min(values[len(facts) + i] for values in everyone) for i, name in enumerate(spread)}

    def least(self, values: list[int]) -> tuple[torch.Tensor, Any]:
        """Start an all-reduce of each value's minimum; after waiting for the returned work, the tensor holds them."""
        mine = torch.tensor(values, dtype=torch.int64, device="cpu")
        with answers():
            return mine, dist.all_reduce(mine, dist.ReduceOp.MIN, group=self._group, async_op=True)


def compare_in_store(
    env: Mapping[str, str], world_size: int, name: str, fingerprint: bytes, group: GroupStore | None = None
) -> str:
    """Compare a fingerprint with the rank that stored one of the same name first, in a group's or torchrun's store.

    Waits for no other rank, and at most ``STORE_S`` for the store. Only connects: a port that ``init_process_group``
    may need later is never bound.

    Args:
        env: the launcher's variables.
        world_size: number of processes whose ranks read this dataset together.
        name: the same for ranks that must see the same data.
        fingerprint: fingerprint of the dataset, not empty.
        group: the store of the process group of the process that started this one; None: it has none.

    Returns:
        Why the fingerprint was not compared; empty: it was, and is the same.

    Raises:
        RanksDisagree: the first rank has another fingerprint.
    """
    if group is not None:
        host, port, rank, processes = group
    elif not dist.is_available() or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return "torchrun's store is not available"
    else:
        try:
            host, port, rank = env["MASTER_ADDR"], int(env["MASTER_PORT"]), int(env["RANK"])
            processes = int(env["WORLD_SIZE"])
        except (KeyError, ValueError):
            return "MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE is missing or invalid"
    if processes != world_size:
        return f"the job has {processes} processes, but {world_size} read the dataset"
    attempt = "/".join(env.get(one, "") for one in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    said: list[str | None] = []

    def ask() -> None:
        mine = f"{rank}:{fingerprint.hex()}"
        try:
            limit = timedelta(seconds=STORE_S)
            store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)  # type: ignore[attr-defined]  # torch has no stubs
            # A process that reads the same data twice compares each time with what others read that time.
            turn = store.add(f"feedd/{attempt}/{name}/{rank}", 1)
            said.append(store.compare_set(f"feedd/{attempt}/{name}/turn-{turn}", "", mine).decode())
        except (RuntimeError, ValueError) as error:
            _log.debug("torchrun's store said: %s", error)

    # The store's client waits without a limit for an answer, and for the name server.
    asking = threading.Thread(target=ask, name="feedd-compare", daemon=True)
    asking.start()
    asking.join(STORE_S)
    if not said:
        return f"the store at {host}:{port} did not answer within {STORE_S:.0f} s"
    first, _, theirs = str(said[0]).partition(":")
    if theirs != fingerprint.hex():
        raise RanksDisagree(
            f"expected the same dataset fingerprint on all ranks, got {theirs} on rank {first}"
            f" and {fingerprint.hex()} on rank {rank}",
            object="dataset fingerprint",
            hint="all ranks must read the same objects: read a frozen+ manifest, or do not change the data at the start"
            " of a job",
        )
    return ""


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """Translate gloo's error for a rank that does not answer.

    Raises:
        RanksDisagree: another rank ended, or did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:
        _log.debug("torch.distributed said: %s", error)
        raise RanksDisagree(
            f"expected all ranks to answer, got {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            hint="another rank ended: see its error. Every rank must iterate; for a rank that reads alone pass"
            " topology=Topology()",
        ) from None


class Join:
    """Decides for each step, ``lookahead`` steps in advance, whether every rank has it, so that all end together.

    Every rank posts the same number of times in a pass, however the pass ends. A missing post would be answered by the
    next pass of another rank. One thread uses the object. Any thread may call ``leave``, and so may a finalizer in the
    middle of ``post``. So ``leave`` never waits for the guard: the holder of the guard posts for it.
    """

    def __init__(self, agreement: Agreement, lookahead: int) -> None:
        self.lookahead = lookahead
        self._agreement = agreement
        self._posted: deque[tuple[int, torch.Tensor, Any]] = deque()
        self._step = 0
        self._posted_count = 0
        self._left = False
        self._leave_after: deque[int] = deque()
        self._guard = threading.Lock()

    @property
    def to_post(self) -> int:
        """Number of steps to post before the next ``settle``."""
        return self.lookahead + 1 - len(self._posted)

    def post(self, rows: int) -> None:
        """Post the number of rows that this rank has at the next step; ``AT_END`` if its epoch is over.

        Raises:
            RanksDisagree: this rank has left the pass.
        """
        step = self._step + len(self._posted)
        try:
            with self._guard:
                if self._left:
                    raise RanksDisagree("expected a running pass, got a pass that this rank has left")
                self._posted_count += 1
                tensor, work = self._agreement.least([_OVER if rows == AT_END else rows + 1, step, -step])
        finally:
            self._leave()
        self._posted.append((step, tensor, work))

    def settle(self) -> int:
        """Return the rows that every rank has at the next step; ``AT_END``: stop.

        Raises:
            RanksDisagree: another rank is at another step, or has left the pass.
        """
        step, tensor, work = self._posted.popleft()
        with answers():
            work.wait()
        said, least_step, most_step = tensor.tolist()
        self._step += 1
        if least_step != step or most_step != -step:
            raise RanksDisagree(
                f"expected all ranks at step {step}, got ranks from {least_step} to {-most_step}",
                hint="every rank must ask for the same number of batches; break out on all ranks or on none",
            )
        if said == _LEFT:
            raise RanksDisagree(
                f"expected all ranks to continue after {step} steps, got a rank that has left this pass",
                hint="see that rank's error; break out on all ranks or on none",
            )
        if said == _OVER:
            with answers():
                for _, _, later in self._posted:  # every rank posted these steps too
                    later.wait()
            self._posted.clear()
        return int(said) - 1

    def leave(self, step_count: int) -> None:
        """Leave the pass early without waiting. Calling it again has no effect.

        Args:
            step_count: upper bound of the steps that any rank has settled, the same on all ranks that break together.
        """
        self._leave_after.append(step_count)
        self._leave()

    def _leave(self) -> None:
        """Post what ``leave`` requested, unless the guard is held; its holder calls this method after releasing it."""
        while self._leave_after and self._guard.acquire(blocking=False):
            try:
                while self._leave_after:
                    self._post_left(self._leave_after.popleft())
            finally:
                self._guard.release()

    def _post_left(self, step_count: int) -> None:
        self._left = True
        with contextlib.suppress(RanksDisagree, ValueError):  # the group may be destroyed already
            while self._posted_count < step_count + self.lookahead + 1:
                step = self._posted_count
                self._posted_count += 1
                self._agreement.least([_LEFT, step, -step])


def digest(*parts: object) -> int:
    """Return a non-negative int64 that ranks can compare instead of ``parts``."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
