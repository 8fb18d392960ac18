"""Shell completion: command names and option names, without importing what a completion does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from feedd.cli.app import COMMANDS, app, load

pytestmark = pytest.mark.slow
_CODE = (
    "import contextlib, sys\nfrom feedd.cli import main\nsys.argv = ['feedd']\n"
    "with contextlib.suppress(SystemExit):\n    main()\nsys.stdout = sys.stderr\nprint(*sys.modules, sep='\\n')"
)
_STAGES = {"aiohttp", "aiobotocore", "botocore", "grpc", "torch", "uvloop"}


def _completed(line: str) -> tuple[list[str], set[str]]:
    """Return what a shell offers for the last word of a line, and the modules that were imported for that."""
    words = line.split(" ")
    shell = {"_FEEDD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env=os.environ | shell, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), set(done.stderr.split())


def test_commands_are_completed_and_none_is_imported() -> None:
    """All commands are offered, or those that begin with what was typed. No command is imported, nor the stages."""
    found, modules = _completed("feedd ")
    assert set(found) == {*COMMANDS, "version"}
    assert _completed("feedd pe")[0] == ["peek"]
    assert not modules & (_STAGES | {"awscrt", "numpy"})  # typer imports pydantic itself
    assert not {module for module in modules if module.startswith("feedd.cli.")} - {"feedd.cli.app"}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("feedd serve --ca", ["--cache-dir", "--cache-size"]),
        ("feedd plan --nodes 2 --shardi", ["--sharding"]),
        ("feedd cache wa", ["warm"]),
        ("feedd bench ingest --si", ["--size"]),
        ("feedd nonsense --si", []),
    ],
)
def test_options_are_completed_without_the_stages(line: str, offered: list[str]) -> None:
    """Options of the command that was typed are offered; SDK, gRPC and event loop are not imported for that."""
    found, modules = _completed(line)
    assert found == offered
    assert not modules & _STAGES


def test_completion_is_installed_by_the_first_page_only() -> None:
    """``--install-completion`` is an option of feedd. Commands, which are imported alone, have no such option."""
    assert "--install-completion" in {flag for one in _parameters(None) for flag in one.opts}
    for name in COMMANDS:
        assert "--install-completion" not in {flag for one in _parameters(name) for flag in one.opts}, name


def _parameters(name: str | None) -> list[Any]:
    return get_command(app).params if name is None else load(name).params
