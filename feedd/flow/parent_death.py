"""Ends a process with its parent, however that dies."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Have the kernel send this process a signal when its parent dies.

    Returns:
        Whether the parent lives. False: it died before the kernel was asked, so no signal will come.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent_pid


def main() -> None:
    """Run a module as a child that dies with its parent: ``python -m feedd.flow.parent_death MODULE [ARG ...]``."""
    if not end_with(os.getppid()):
        raise SystemExit(1)
    module, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
