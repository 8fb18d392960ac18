"""What memory a worker may take while it makes a shard, beside the object and the shard.

What data says of its own size is no reason to take as much: libraries believe it, and a node that runs out of memory
loses its trainer. So private memory has a limit meanwhile, set with the system, and what is known to need more is
refused before.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING, Final

from feedd.errors import ResourceExhausted
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.protocols import ShardWriter

LEAST_BYTES: Final = 256 << 20
"""As much any making may take: libraries are loaded into it, too."""

_NO_LIMIT_BYTES: Final = 1 << 46
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def room_of(out: ShardWriter) -> int:
    """Return the bytes that may be taken beside what is written; as many as the shard may have where nobody says."""
    return getattr(out, "beside_bytes", out.limit_bytes)


def check_room(needed_bytes: int, out: ShardWriter, url: str, what: str) -> None:
    """Make sure that there is memory for something before it is taken.

    Args:
        needed_bytes: of it.
        out: of the shard.
        url: named in errors.
        what: it is for.

    Raises:
        ResourceExhausted: there is not.
    """
    if needed_bytes > room_of(out):
        raise ResourceExhausted(
            f"expected memory for the {format_size(needed_bytes)} of {what}, got room for {format_size(room_of(out))}",
            object=url,
            hint="give the daemon more memory, or store it in smaller pieces",
            stage="decode",
        )


@contextlib.contextmanager
def at_most(room_bytes: int, url: str) -> Iterator[None]:
    """Let this process take so many more bytes of private memory meanwhile, and no more.

    Args:
        room_bytes: at least ``LEAST_BYTES`` are let through; very many are no limit.
        url: named in errors.

    Raises:
        ResourceExhausted: it wanted more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if room_bytes < _NO_LIMIT_BYTES:
        most = _private_bytes() + max(room_bytes, LEAST_BYTES)
        bounds = [most, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    except MemoryError as error:
        raise no_memory(url) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def no_memory(url: str) -> ResourceExhausted:
    """Return the error for memory that was refused."""
    return ResourceExhausted(
        "expected memory to make a shard of it, got less than that takes",
        object=url,
        hint="give the daemon more memory, or store smaller shards (of Parquet and HDF5: row groups, pages, chunks); "
        "or it is damaged, and wrong about its size",
        stage="decode",
    )


def _private_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file that is none
        return int(file.read().split()[5]) * _PAGE_BYTES
