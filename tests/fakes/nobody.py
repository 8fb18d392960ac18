"""Another user than root, who may write anywhere: permissions bind in a container, too."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
_CAPABILITY_VERSION = 0x20080522
_DAC_OVERRIDE = 1 << 1
_DAC_READ_SEARCH = 1 << 2


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Be nobody meanwhile, where this is root."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


def let_permissions_bind() -> None:
    """Give up, where this is root, what lets it write anywhere; it stays root, whose Python others may not read."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    for call in ("capget", "capset"):
        if getattr(libc, call)(header, sets):
            raise OSError(ctypes.get_errno(), call)
        for number in range(3):  # effective, permitted, inheritable: of the first 32 capabilities
            sets[number] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
