"""Console blocks: their commands, and how each is run on a machine that is not the reader's."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from feedd.cli.app import COMMANDS, app, load
from feedd.config import load as load_config
from feedd.config import options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.docs.blocks import Block

_OF_CLIENTS = {
    f"FEEDD_{one}" for one in ["ADDRESS", "CHANNELS", "EXECUTABLE", "TLS_CA", "TLS_CERT", "TLS_KEY", "CONFIG", "S3"]
}
_VARIABLE = re.compile(r"(FEEDD_\w+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command of a console block.

    Attributes:
        environment: variables in front of it.
        words: program and arguments.
    """

    environment: dict[str, str]
    words: list[str]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block, each a line that begins with a prompt."""
    for line in block.body.replace("\\\n", " ").splitlines():
        assert line.startswith("$ "), f"{block.place}: expected a command, got {line!r}"
        words = shlex.split(line.removeprefix("$ "), comments=True)
        environment = {}
        while words and (given := re.fullmatch(r"([A-Z_0-9]+)=(.*)", words[0], re.DOTALL)):
            environment[given[1]] = given[2]
            words = words[1:]
        yield Command(environment, words)


def adapted(text: str, folder: Path) -> str:
    """Return a word of a command with paths below ``folder``, and with sizes that fit a small disk."""
    for place in ("/mnt/nvme/feedd", "/tmp/feedd/", "/tmp/feedd", "/etc/feedd", "/opt/ml"):
        text = re.sub(rf"(?<![\w]){place}", f"{folder}/" if place.endswith("/") else str(folder), text)
    return re.sub(r"\b800GiB\b", "1GiB", re.sub(r"\b(5|8)GiB\b", "1MiB", text))


def check_variables(environment: dict[str, str]) -> None:
    """Fail for a variable that is neither an option, with a value that the daemon takes, nor one of the client."""
    known = {option.env for option in options()}
    ours = {name: value for name, value in environment.items() if name.startswith("FEEDD_")}
    assert set(ours) <= known | _OF_CLIENTS, f"expected options, got {sorted(set(ours) - known - _OF_CLIENTS)}"
    load_config({}, {name: value for name, value in ours.items() if name in known or name == "FEEDD_S3"})


def check_words(words: list[str]) -> None:
    """Parse a command of feedd as the program would, without running it."""
    given = [_VARIABLE.fullmatch(word) for word in words]  # as docker run -e passes them
    check_variables({match[1]: match[2] for match in given if match})
    if words[:1] != ["feedd"] or len(words) == 1:
        return
    if words[1].startswith("--"):  # of the program itself
        known = {name for parameter in get_command(app).params for name in parameter.opts}
        assert words[1] in known, f"expected one of {sorted(known)}, got {words[1]}"
        return
    command: Any = load(words[1]) if words[1] in COMMANDS else get_command(app).commands[words[1]]  # type: ignore[attr-defined]  # a group
    rest = words[2:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[1], rest).close()
