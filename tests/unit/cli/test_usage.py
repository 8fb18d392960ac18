"""The command line's manners: help, exit codes, one clean line per error."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from feedd import __version__
from feedd.cli.app import COMMANDS as MODULES
from feedd.cli.app import load
from feedd.errors import BadConfig, FeeddError, Internal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Feedd

COMMANDS = tuple(
    tuple(text.split())
    for text in (
        "serve",
        "check",
        "peek",
        "plan",
        "cache ls",
        "cache stat",
        "cache rm",
        "demo",
        "bench ingest",
        "version",
    )
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(feedd: Feedd, command: tuple[str, ...]) -> None:
    """Help says what the command does and shows how it is typed."""
    outcome = feedd(*command, "--help")
    assert outcome.code == 0
    assert f"Example: feedd {' '.join(command)}" in outcome.out


def test_help_lists_the_commands(feedd: Feedd) -> None:
    """The first page names every command and the exit codes."""
    outcome = feedd("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert command[0] in outcome.out
    assert "Exit codes" in outcome.out


@pytest.mark.parametrize("command", ["version", "check", "check --help"])
def test_an_output_without_room_is_one_line(command: str) -> None:
    """A command whose results cannot be written fails, and says why in one line."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "feedd", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "feedd: error: standard output cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("name", MODULES)
def test_the_first_page_says_what_a_command_does(name: str) -> None:
    """The list of commands, which imports none of them, has the first sentence of each one's own help."""
    own = load(name)
    assert own.name == name
    assert own.help is not None
    assert re.split(r"(?<=\.)\s", own.help)[0] == MODULES[name]


def test_help_and_version_import_little() -> None:
    """They answer at once: no command is imported, nor anything large."""
    code = (
        "import contextlib, sys\nfrom feedd.cli import main\nsys.argv[1:] = ['--help']\n"
        "with contextlib.suppress(SystemExit):\n    main()\nsys.stdout = sys.stderr\nprint(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded & {"aiohttp", "aiobotocore", "awscrt", "botocore", "grpc", "numpy", "pydantic", "torch", "uvloop"}
    assert "feedd.cli.serve" not in loaded


def test_a_mistyped_command_is_suggested(feedd: Feedd) -> None:
    """So are commands that are not imported."""
    assert "Did you mean 'serve'" in feedd("serv").err


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version(feedd: Feedd, asked: str) -> None:
    """The version goes to standard output, alone."""
    outcome = feedd(asked)
    assert (outcome.code, outcome.out, outcome.err) == (0, f"feedd {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("serve", "--nonsense"), ("plan",), ("plan", "s3://b/", "--nodes", "0"), ("check", "--set", "x")],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(feedd: Feedd, arguments: tuple[str, ...]) -> None:
    """What the user mistyped is exit code 2, explained on standard error."""
    outcome = feedd(*arguments)
    assert outcome.code == 2
    assert outcome.err


@pytest.mark.parametrize("command", [("serve",), ("check",), ("plan", "s3://b/", "--nodes", "2")], ids=" ".join)
def test_bad_configuration_exits_with_2_and_lists_everything(feedd: Feedd, command: tuple[str, ...]) -> None:
    """Every problem on a line of its own, with its origin; no traceback."""
    outcome = feedd(*command, "--set", "cache.size=lots", "--set", "fetch.attempts=0")
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert lines[0] == "feedd: error: 2 problems in the configuration"
    assert len(lines) == 3
    assert all("(flag --set)" in line for line in lines[1:])


def test_environment_and_file_are_read(feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of variable and file are told together with their places."""
    file = tmp_path / "feedd.toml"
    file.write_text("\n[drain]\ngrace = 'never'\n")
    monkeypatch.setenv("FEEDD_CONFIG", str(file))
    monkeypatch.setenv("FEEDD_LOG__LEVEL", "loud")
    outcome = feedd("check")
    assert outcome.code == 2
    assert f"({file} line 3)" in outcome.err
    assert "(env FEEDD_LOG__LEVEL)" in outcome.err


@pytest.mark.parametrize(("error", "code"), [(BadConfig("expected a, got b", hint="do c"), 2), (Internal("broken"), 1)])
def test_errors_are_one_clean_line(
    feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FeeddError, code: int
) -> None:
    """The message, then the hint, and no traceback; the code tells whose turn it is."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("feedd.cli.cache.scan", fail)
    outcome = feedd("cache", "ls", "--cache-dir", tmp_path)
    hint = "feedd: hint: do c\n" if error.hint else ""
    assert (outcome.code, outcome.err) == (code, f"feedd: error: {error.message}\n{hint}")


@pytest.mark.parametrize(
    "error", [Internal("no answer from https://h/x?sig=abcdef"), ValueError("https://u:abcdef@h/")]
)
def test_no_message_holds_a_secret(
    feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An error's line and the traceback of a defect are written without secrets, and the command fails."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("feedd.cli.cache.scan", fail)
    outcome = feedd("cache", "ls", "--cache-dir", tmp_path)
    assert outcome.code == 1
    assert "(redacted)" in outcome.err
    assert "abcdef" not in outcome.err
    assert ("Traceback" in outcome.err) == isinstance(error, ValueError)


def test_debug_shows_the_traceback(feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FEEDD_DEBUG=1 the error's traceback is written, without secrets."""

    def fail(*_: object) -> None:
        raise Internal("broken: https://h/x?sig=abcdef")

    monkeypatch.setattr("feedd.cli.cache.scan", fail)
    monkeypatch.setenv("FEEDD_DEBUG", "1")
    outcome = feedd("cache", "ls", "--cache-dir", tmp_path)
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "broken" in outcome.err
    assert "abcdef" not in outcome.err
