"""Documents: code in them compiles, commands in them exist, links in them lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from feedd.cli.app import COMMANDS, app, load
from feedd.config import options
from feedd.config.loading import REMOVED
from feedd.config.option_list import dotted
from tests.tidy.tree import ROOT, sources, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
_FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


_OPTION = re.compile(r"`([a-z]+\.[a-z_]+)(?: = [^`]*)?`")
_NO_OPTIONS = {"feedd.toml", "feedd.service", "quarantine.jsonl"}


def _blocks(path: Path, language: str) -> Iterator[str]:
    for match in _FENCE.finditer((ROOT / path).read_text(encoding="utf-8")):
        if match["language"] == language:
            yield match["body"]


def _commands(path: Path) -> Iterator[list[str]]:
    for body in _blocks(path, "console"):
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line.removeprefix("$ "), comments=True)


def test_python_blocks_compile() -> None:
    """Every Python block of a document is valid Python."""
    for path in DOCUMENTS:
        for body in _blocks(path, "python"):
            compile(body, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _check_feedd(words: list[str]) -> None:
    context = "feedd"
    command: Any = get_command(app)
    rest = words[1:]
    while rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        known = command.commands
        assert rest[0] in known, f"{context} has no command {rest[0]}"
        command = load(rest[0]) if context == "feedd" and rest[0] in COMMANDS else known[rest[0]]
        context, rest = f"{context} {rest[0]}", rest[1:]
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in {*flags, "--help"}, f"{context} has no flag {word}"


def test_commands_exist() -> None:
    """Every feedd command with its flags, and every make target, that a document shows can be typed."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in (words for path in DOCUMENTS for words in _commands(path)):
        if words[:1] == ["feedd"]:
            _check_feedd(words)
        elif words[:1] == ["make"]:
            for target in words[1:]:
                assert "=" in target or re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    """Every relative link of a document names a file of the tree."""
    found = []
    for path in DOCUMENTS:
        targets = [match["target"] for match in _LINK.finditer((ROOT / path).read_text(encoding="utf-8"))]
        own = [one for one in targets if "://" not in one and not one.startswith("mailto:")]
        found += [f"{path}: {target}" for target in own if not (ROOT / path.parent / target).exists()]
    assert found == []


def test_options_exist() -> None:
    """A name that begins with a section of the configuration is an option; in ARCHITECTURE.md it may be a module.

    The changelog and decisions also name options that were removed.
    """
    known = {dotted(option.path) for option in options()}
    sections = {name.partition(".")[0] for name in known}
    modules = {".".join(source.path.with_suffix("").parts[1:]) for source in sources() if source.is_product}
    found = []
    for path in DOCUMENTS:
        named = set(_OPTION.findall((ROOT / path).read_text(encoding="utf-8"))) - _NO_OPTIONS - known
        own = modules if path.name == "ARCHITECTURE.md" else set()
        past = REMOVED.keys() if path.name == "CHANGELOG.md" or "decisions" in path.parts else set()
        found += [f"{path}: {name}" for name in named - own - past if name.partition(".")[0] in sections]
    assert found == []
