"""A part of a dataset's shards, for jobs that share work. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feedd.errors import BadRequest

_COUNT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Every ``count``-th shard of a dataset, from shard ``index`` on. All parts together are the dataset."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> ShardPart:
        """Return the part that ``I/N`` names.

        Raises:
            BadRequest: the text is no part.
        """
        index, slash, count = text.partition("/")
        if slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= _COUNT_MAX:
            return cls(int(index), int(count))
        raise BadRequest(
            f"expected a part I/N, with I from 0 to N - 1 and N up to {_COUNT_MAX}, got {text!r}",
            object="--part",
            hint="in a Slurm array: --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT, with indices from 0",
        )

    def of(self, shard_count: int) -> range:
        """Return the part's shards."""
        return range(self.index, shard_count, self.count)


WHOLE: Final = ShardPart()
