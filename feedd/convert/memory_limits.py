"""Limits the memory that a worker takes for a conversion, in addition to the object and the shard.

Libraries trust the sizes that data states, and a node that runs out of memory loses its trainer. So the operating
system limits the worker's private memory during a conversion. Data that is known to need more is refused in advance.
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
"""Memory that every conversion may take; imported libraries count too."""

_NO_LIMIT_BYTES: Final = 1 << 46
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def memory_left(out: ShardWriter) -> int:
    """Return the memory that a conversion may take in addition to its output; without a limit, the shard's limit."""
    return getattr(out, "extra_bytes", out.limit_bytes)


def check_memory(needed_bytes: int, out: ShardWriter, url: str, what: str) -> None:
    """Check that there is memory before it is allocated.

    Args:
        needed_bytes: bytes to allocate.
        out: the output of the shard.
        url: named in errors.
        what: the purpose, named in errors.

    Raises:
        ResourceExhausted: there is too little memory.
    """
    if needed_bytes > memory_left(out):
        raise ResourceExhausted(
            f"expected memory for {format_size(needed_bytes)} of {what}, got room for {format_size(memory_left(out))}",
            object=url,
            hint="give the daemon more memory, or store it in smaller pieces",
            stage="decode",
        )


@contextlib.contextmanager
def at_most(memory_bytes: int, url: str) -> Iterator[None]:
    """Limit the additional private memory of this process to ``memory_bytes`` in the context.

    Args:
        memory_bytes: at least ``LEAST_BYTES`` are allowed; a very high number sets no limit.
        url: named in errors.

    Raises:
        ResourceExhausted: the process needed more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if memory_bytes < _NO_LIMIT_BYTES:
        most = _private_bytes() + max(memory_bytes, LEAST_BYTES)
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
        "there is too little memory to convert the object",
        object=url,
        hint="give the daemon more memory, or store smaller shards (of Parquet and HDF5: row groups, pages, chunks); "
        "if the object is damaged, it may state wrong sizes",
        stage="decode",
    )


def _private_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[5]) * _PAGE_BYTES
