"""``-m feedd.demo.child MODULE [ARG ...]``: runs a module as a child that dies with its parent in any case."""

from __future__ import annotations

import os
import runpy
import sys

from feedd.flow.parent_death import end_with


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then run the module."""
    if not end_with(os.getppid()):
        raise SystemExit(1)
    module, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
