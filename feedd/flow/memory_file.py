"""Anonymous memory with a descriptor, which other processes can map."""

from __future__ import annotations

import errno
import os
from typing import Final

from feedd.errors import Unsupported

_REFUSED: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})


def memory_file(name: str) -> int:
    """Return the descriptor of a new, empty memfd, which can be sealed; the caller closes it.

    Args:
        name: name shown in ``/proc``.

    Raises:
        Unsupported: this process may not create one. All batches need it, so the run cannot go on.
        OSError: no descriptor or no memory is left.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise Unsupported(
            f"the kernel refuses shared memory: memfd_create: {error.strerror}",
            hint="allow the system call memfd_create in the seccomp profile of this container or sandbox",
            stage="serve",
        ) from error
