"""What a process runs, asked of the system."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty: it has ended, or is about to become what it will be."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
