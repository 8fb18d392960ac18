"""Finds the program that starts a daemon: the user's choice, this environment's package, or a command on PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd_client.errors import DaemonStartError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "FEEDD_EXECUTABLE"
_NAME: Final = "feedd"
_OF_THIS_PYTHON: Final = {"PYTHONPATH", "PYTHONHOME"}


@dataclass(frozen=True, slots=True)
class Executable:
    """The command that starts a daemon.

    Attributes:
        command: the program and its first arguments.
        is_foreign: the program may belong to another Python environment than this process.
    """

    command: tuple[str, ...]
    is_foreign: bool

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the daemon's environment variables; Python's module paths are left out for a foreign program."""
        return {name: value for name, value in env.items() if not (self.is_foreign and name in _OF_THIS_PYTHON)}


def find_executable(env: Mapping[str, str], address: str) -> Executable:
    """Return the program of ``$FEEDD_EXECUTABLE``, else the package ``feedd`` of this Python, else ``feedd`` on PATH.

    Args:
        env: the environment of this process.
        address: the address at which no daemon answered; named in the error.

    Raises:
        DaemonStartError: the variable names no program, or none of the three exists.
    """
    path = env.get("PATH", os.defpath)
    named = env.get(VARIABLE)
    if named:
        found = shutil.which(named, path=path)
        if found is None:
            raise DaemonStartError(
                f"expected {VARIABLE} to name an executable file or a command on PATH, got {named!r}",
                object=named,
                hint=f"set {VARIABLE} to the command feedd of the daemon's environment, such as /opt/feedd/bin/feedd",
            )
        return Executable((str(Path(found).absolute()),), is_foreign=True)
    spec = importlib.util.find_spec(_NAME)
    if spec is not None and spec.origin is not None:  # a folder that is merely named feedd has no origin
        # -P: the daemon imports no modules that lie in the directory where the job runs.
        return Executable((sys.executable, "-P", "-m", _NAME), is_foreign=False)
    found = shutil.which(_NAME, path=path)
    if found is not None:
        return Executable((str(Path(found).absolute()),), is_foreign=True)
    raise DaemonStartError(
        "no feedd daemon is running, and neither the package feedd nor the command feedd is installed",
        object=address,
        hint=f"pip install feedd here, or set {VARIABLE} to the command feedd of another environment,"
        " or start a daemon on this node and set FEEDD_ADDRESS or address=",
    )
