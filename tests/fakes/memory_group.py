"""A real control group with a limit of memory, for processes that a test starts in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@contextlib.contextmanager
def memory_group(size_bytes: int) -> Iterator[Path]:
    """Make a group with a limit and one below it, which is given; skip the test where that is not permitted."""
    group = _made(size_bytes)
    try:
        yield group / "step"
    finally:
        (group / "step").rmdir()
        group.rmdir()


def enter(group: Path) -> None:
    """Move this process into a group."""
    (group / "cgroup.procs").write_text("0")


def _made(size_bytes: int) -> Path:
    for top, limit in _PLACES:
        group = Path(top) / f"feedd-test-{os.getpid()}"
        try:
            (group / "step").mkdir(parents=True)
            (group / limit).write_text(str(size_bytes))
        except OSError:
            for folder in (group / "step", group):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        else:
            return group
    pytest.skip("needs root, and the right to make a control group of memory")
