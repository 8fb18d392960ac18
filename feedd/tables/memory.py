"""Limits the private memory of a worker: of the whole process, and more narrowly during one call.

Libraries trust the sizes that data states, and a node that runs out of memory loses its trainer. So the operating
system limits the private memory of a worker. Data that is known to need more is refused in advance. Mapped files and
shared memory do not count.
"""

from __future__ import annotations

import contextlib
import os
import resource
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard, ResourceExhausted
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.protocols import ShardWriter


LEAST_BYTES: Final = 256 << 20
"""Memory that every conversion may take; imported libraries count too."""

OPTION: Final = "decode.memory"

NO_LIMIT_BYTES: Final = 1 << 46
_OBJECT_TIMES: Final = 8  # text of a table is read as a whole, and takes up to six times its size
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_by_option: ContextVar[int] = ContextVar("memory that the option allows now", default=0)


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
        BadShard: one call may not take as much.
        ResourceExhausted: there is too little memory.
    """
    if needed_bytes <= memory_left(out):
        return
    message = f"expected memory for {format_size(needed_bytes)} of {what}, got room for {format_size(memory_left(out))}"
    if getattr(out, "call_bytes", NO_LIMIT_BYTES) <= memory_left(out):
        raise BadShard(message, object=url, hint=f"raise {OPTION}, or store it in smaller pieces", stage="decode")
    hint = "give the daemon more memory, or store it in smaller pieces"
    raise ResourceExhausted(message, object=url, hint=hint, stage="decode")


def limit_process(memory_bytes: int) -> None:
    """Limit the private memory of this process to ``memory_bytes`` more than it has now, for good; 0: no limit."""
    if 0 < memory_bytes < NO_LIMIT_BYTES:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_below(_private_bytes() + memory_bytes, hard), hard))


def call_limit(memory_bytes: int, object_bytes: int) -> int:
    """Return the memory that a call may take for one object: ``decode.memory``, and more for a large object.

    Args:
        memory_bytes: ``decode.memory``; 0: no limit.
        object_bytes: size of the object in its store. A small object that expands gets no more for that.
    """
    return max(memory_bytes, _OBJECT_TIMES * object_bytes) if memory_bytes else NO_LIMIT_BYTES


@contextlib.contextmanager
def at_most(free_bytes: int, url: str, limit_bytes: int = NO_LIMIT_BYTES) -> Iterator[None]:
    """Limit the additional private memory of this process in the context, to the lower of two limits.

    Args:
        free_bytes: memory that is free now; at least ``LEAST_BYTES`` are allowed. A very high number sets no limit.
        url: named in errors.
        limit_bytes: see ``call_limit``.

    Raises:
        BadShard: the process needed more than ``limit_bytes``.
        ResourceExhausted: the process needed more than is free.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    memory_bytes = max(min(free_bytes, limit_bytes), LEAST_BYTES)
    if memory_bytes < NO_LIMIT_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (_below(_private_bytes() + memory_bytes, hard), hard))
    token = _by_option.set(memory_bytes if limit_bytes <= free_bytes else 0)
    try:
        yield
    except MemoryError as error:
        raise no_memory(url, error) from error
    finally:
        _by_option.reset(token)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _below(limit_bytes: int, hard: int) -> int:
    return limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)


def no_memory(url: str, error: MemoryError) -> BadShard | ResourceExhausted:
    """Return the error for memory that was refused: final if ``decode.memory`` is the limit (see ``at_most``)."""
    small = "store smaller shards (of Parquet and HDF5: row groups, pages, chunks)"
    damaged = "if the object is damaged, it may state wrong sizes"
    if limit_bytes := _by_option.get():
        needed = f": {error}"[:200] if str(error) else ""
        expected = f"expected an object that is read with {format_size(limit_bytes)} of memory"
        hint = f"raise {OPTION}, or {small}; {damaged}"
        return BadShard(f"{expected}, got one that needs more{needed}", object=url, hint=hint, stage="decode")
    return ResourceExhausted(
        "there is too little memory to convert the object",
        object=url,
        hint=f"give the daemon more memory, or {small}; {damaged}",
        stage="decode",
    )


def _private_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[5]) * _PAGE_BYTES
