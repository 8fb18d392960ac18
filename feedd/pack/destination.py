"""Where shards are written: the seam. Every object appears whole under its name, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.pack.packed_sample import Piece


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is known about a shard that has been written.

    Attributes:
        plan: digest of the plan that the shard belongs to.
        sha256: digest of the shard, in hexadecimal.
        size_bytes: bytes of the shard.
        samples: samples in the shard.
        etag: version of the object that holds the shard.
    """

    plan: str
    sha256: str
    size_bytes: int
    samples: int
    etag: str = ""


class Destination(Protocol):
    """A folder for one pack; names are relative to it."""

    @property
    def url(self) -> str:
        """URL of the folder, with a final slash."""

    async def read(self, name: str) -> bytes | None:
        """Return an object, or None if there is none."""

    async def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""

    async def replace(self, name: str, data: bytes) -> None:
        """Write an object, over an earlier version if there is one."""

    async def names(self) -> set[str]:
        """Return the names of all objects in the folder, without those of folders below."""

    async def find(self, name: str, plan: str) -> ShardRecord | None:
        """Return the record of a shard of a plan if it is there as it was written; else None.

        Raises:
            BadRequest: another program, or another pack, has written an object of this name.
        """

    async def write_shard(self, name: str, pieces: Iterable[Piece], plan: str, samples: int) -> ShardRecord:
        """Write a shard; return its record.

        Args:
            name: name of the shard.
            pieces: its bytes. They are taken in a thread, and may be read from files meanwhile.
            plan: digest of the plan.
            samples: number of samples in the shard.
        """

    async def finish(self) -> None:
        """Remove what only unfinished packs need."""
