"""The page of commands, docs/reference/cli.md, made from the commands themselves.

To renew it: ``python -m tests.tidy.cli_page``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from typer.main import get_command

from feedd.cli.app import COMMANDS, app, load
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = ROOT / "docs" / "reference" / "cli.md"
_HEAD: Final = """\
<!-- made by python -m tests.tidy.cli_page -->

# Commands

`feedd --help` lists the commands. `feedd COMMAND --help` shows the options of one command, as this page does.

Exit codes: 0 is clean, 2 is a wrong configuration or usage, and 1 is anything else.

## Shell completion

<!-- test: parse only: it changes the user's shell -->
```console
$ feedd --install-completion
```

This sets up completion of commands and options for bash, zsh or fish. Open a new shell afterwards.
`feedd --show-completion` prints the script instead.
"""


def page() -> str:
    """Return the whole page."""
    whole = [*_HEAD.splitlines(), *_options(get_command(app))]
    for name in COMMANDS:
        for path, command in _commands(name, load(name)):
            whole += ["", f"## feedd {path}", "", *_text(command.help), *_example(command), *_arguments(command)]
            whole += _options(command)
    return "\n".join(whole) + "\n"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:  # click's objects, which typer does not name
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
        return
    for name, one in inner.items():
        yield from _commands(f"{path} {name}", one)


def _text(help_: str | None) -> list[str]:
    """Return a docstring as paragraphs; a line break inside one means nothing."""
    return inspect.cleandoc(help_ or "").splitlines()


def _example(command: Any) -> list[str]:
    """Return the example that closes a command's help."""
    shown = (command.epilog or "").removeprefix("Example: ")
    block = ["", "<!-- test: parse only: an example of names -->", "```console", f"$ {shown}", "```"]
    return block if shown.startswith("feedd ") else []


def _arguments(command: Any) -> list[str]:
    found = [one for one in command.params if one.param_type_name == "argument"]
    rows = [
        (f"`{one.metavar or one.name.upper()}`", "" if one.required else "optional", _cell(one.help)) for one in found
    ]
    return _table(("argument", "", "meaning"), rows)


def _options(command: Any) -> list[str]:
    shown = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    return _table(("option", "default", "meaning"), [(_flags(one), _default(one), _cell(one.help)) for one in shown])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    return ["", *(f"| {' | '.join(line)} |" for line in (head, tuple("---" for _ in head), *rows))]


def _flags(option: Any) -> str:
    """Return how an option is written; one that takes a value shows a word for it."""
    names = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    word = option.metavar or max(option.opts, key=len).lstrip("-").upper().replace("-", "_")
    return names.removesuffix("`") + f" {word}`"


def _default(option: Any) -> str:
    given = option.default
    return "" if given is None or given is False or callable(given) or given == () else f"`{given}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
