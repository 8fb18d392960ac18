"""Settings of the C library's memory allocator, for a process with few large blocks of memory."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20
_TOP_BYTES: Final = 8 << 20


def return_large_blocks() -> bool:
    """Have every block of 1 MiB or more returned to the system as soon as it is freed.

    By default, glibc raises that limit up to 32 MiB when large blocks are freed. Later columns of a plan or a listing
    then lie in heaps, where smaller blocks hold their memory after they are freed.

    Returns:
        Whether the C library has these settings; musl has not.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TOP_BYTES))
