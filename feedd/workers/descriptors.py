"""Descriptors sent between daemon and worker, and the error if a process may open no more files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from feedd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Iterable

SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Error numbers of the kernel if there is no room for a descriptor: nothing was sent, and the socket is unchanged."""


DESCRIPTORS_MAX: Final = 253
"""Descriptors that one message can carry, ``SCM_MAX_FD`` of the kernel."""


def out_of_descriptors(reason: str = "none could be received") -> ResourceExhausted:
    """Return the error of a process that may open no more files, and so can neither send nor receive a descriptor."""
    return ResourceExhausted(
        f"expected room for a descriptor between daemon and decode worker, got: {reason}",
        hint="raise the limit on open files (ulimit -n)",
        stage="decode",
    )


def copies(fds: Iterable[int]) -> list[int]:
    """Return duplicates of descriptors: all of them, or none.

    Raises:
        ResourceExhausted: no more files may be open.
    """
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except OSError as error:
        close_all(made)
        if error.errno in SCARCE:
            raise out_of_descriptors(str(error.strerror)) from error
        raise
    return made


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that came with a message, or were to be sent with one."""
    for fd in fds:
        os.close(fd)
