"""What ranks settle among themselves, over a gloo group of their own and with plain integers."""

from __future__ import annotations

import hashlib
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed as dist

from feedd_client.errors import RanksDisagree

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOKAHEAD_MAX: Final = 2


def process_group_ready() -> bool:
    """Tell whether torch.distributed is there and initialised in this process."""
    return dist.is_available() and dist.is_initialized()


class Agreement:
    """A gloo group of all ranks, made on first use; every rank must make the same calls in the same order."""

    def __init__(self, timeout_s: float) -> None:
        """``timeout_s`` is how long a rank waits for the others (one of them may be waiting for its daemon)."""
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def gather(self, values: list[int]) -> list[list[int]]:
        """Return every rank's ``values``, by rank."""
        mine = torch.tensor(values, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyone, mine, group=self._group)
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
        """Start finding the least of each value over all ranks; the tensor holds it once the work was waited for."""
        mine = torch.tensor(values, dtype=torch.int64)
        return mine, dist.all_reduce(mine, dist.ReduceOp.MIN, group=self._group, async_op=True)


class Join:
    """Settles for each step, ``lookahead`` steps ahead, whether every rank has it: all ranks end together."""

    def __init__(self, agreement: Agreement, lookahead: int) -> None:
        self.lookahead = lookahead
        self._agreement = agreement
        self._posted: deque[tuple[int, torch.Tensor, Any]] = deque()
        self._step = 0

    @property
    def to_post(self) -> int:
        """How many steps must be posted before the next ``settle``."""
        return self.lookahead + 1 - len(self._posted)

    def post(self, rows: int) -> None:
        """Say how many rows this rank has at the next step not yet posted; 0 where its epoch is over."""
        step = self._step + len(self._posted)
        tensor, work = self._agreement.least([rows, step, -step])
        self._posted.append((step, tensor, work))

    def settle(self) -> int:
        """Return the rows every rank has at the next step; 0: stop.

        Raises:
            RanksDisagree: another rank is at another step.
        """
        step, tensor, work = self._posted.popleft()
        work.wait()
        rows, least_step, most_step = tensor.tolist()
        self._step += 1
        if least_step != step or most_step != -step:
            raise RanksDisagree(
                f"expected all ranks at step {step}, got ranks from {least_step} to {-most_step}",
                hint="every rank must ask for the same number of batches; break out on all ranks or on none",
            )
        if rows == 0:
            for _, _, later in self._posted:  # every rank posted these too
                later.wait()
            self._posted.clear()
        return int(rows)


def digest(*parts: object) -> int:
    """Return a number that fits an int64, for comparing across ranks."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
