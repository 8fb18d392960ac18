"""How tests run a command: in this process, as the console script would."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest
import structlog
import uvloop

from feedd.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str


class Feedd(Protocol):
    """The command."""

    def __call__(self, *arguments: str | Path) -> Outcome:
        """Run it."""
        ...


@pytest.fixture(scope="session", autouse=True)
def first_loop() -> None:
    """The first uvloop of a process opens a pipe for signals that it keeps."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
def feedd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Feedd:
    """Run ``feedd`` with arguments, on a wide terminal, reading no configuration of the machine."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("feedd.config.loading.DEFAULT_FILE", tmp_path / "no-such.toml")

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["feedd", *map(str, arguments)])
        capsys.readouterr()
        handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:  # its logs go to a stream that is about to be closed
            structlog.reset_defaults()
            logging.getLogger().handlers[:] = handlers
            logging.getLogger().setLevel(level)
        shown = capsys.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run
