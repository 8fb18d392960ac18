"""Names of our own modules in docstrings, comments and ARCHITECTURE.md lead somewhere."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from feedd.config.models import Config
from feedd.config.option_list import dotted, options
from feedd.recipe.plugins import CODECS, STORES, TRANSFORMS
from tests.tidy.tree import ROOT, Function, sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOTTED = re.compile(r"``([a-z_]\w*(?:\.\w+)+)``")
FILE = re.compile(r"`((?:\w+/)+\w+\.py)(?::\s(\w+)(?:\.(\w+))?)?`")
METHOD = re.compile(r"`([A-Z]\w+)\.(\w+)`")
ROOTS = ("feedd", "client", ".")
NOT_MODULES = {CODECS, STORES, TRANSFORMS, *(dotted(option.path) for option in options(Config))}


def _module(path: Path) -> tuple[str, ...]:
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "client" else parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Name what a module's own lines define."""
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If() | ast.Try():
                yield from _defined(node.body)


@functools.cache
def _modules() -> dict[tuple[str, ...], frozenset[str]]:
    return {_module(source.path): frozenset(_defined(source.tree.body)) for source in sources()}


def _leads(name: tuple[str, ...]) -> bool:
    """Whether a name from its root on is a module, or something a module defines."""
    size = max((size for size in range(len(name) + 1) if name[:size] in _modules()), default=0)
    return size > 0 and (size == len(name) or name[size] in _modules()[name[:size]])


def _astray(name: str, module: tuple[str, ...]) -> bool:
    """Whether a name begins with a module of its own package, or of one above, and leads nowhere."""
    parts = tuple(name.split("."))
    seen = [(*module[:depth], *parts) for depth in range(len(module) + 1) if (*module[:depth], parts[0]) in _modules()]
    return bool(seen) and not any(map(_leads, seen))


def test_modules_that_are_named_exist() -> None:
    """A dotted name in a docstring or comment of the product that begins as a module of ours is one, or is in one."""
    assert _astray("sessions.nowhere", ("feedd", "cache", "fill"))
    assert _astray("fills.Nothing", ("feedd", "cache", "fill"))
    assert not _astray("sessions.opening.Pipeline", ("feedd", "cache", "fill"))
    found = [
        f"{source.path}:{number} {name}"
        for source in sources()
        if source.is_product
        for number, line in enumerate(source.text.splitlines(), start=1)
        for name in DOTTED.findall(line)
        if name not in NOT_MODULES and _astray(name, _module(source.path))
    ]
    assert not found


def test_tests_that_the_product_names_exist() -> None:
    """A rule in a docstring or comment of the product names a test that is there."""
    there = {node.name for source in sources() if not source.is_product for node in source.functions()}
    there |= {str(source.path) for source in sources()}
    named = {
        name
        for source in sources()
        if source.is_product
        for name in re.findall(r"``((?:tests/[\w/]+\.py)|(?:test_\w+))``", source.text)
    }
    assert "test_full_now_waits_holding_no_pins" in named
    assert named <= there


def _methods(tree: ast.Module, name: str) -> set[str]:
    bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {item.name for body in bodies for item in body if isinstance(item, Function)}


def test_files_that_the_architecture_names_exist() -> None:
    """A path in ARCHITECTURE.md is a file, from the daemon's or the tree's root, that defines what stands behind it."""
    trees = {str(source.path): source.tree for source in sources()}
    named = FILE.findall((ROOT / "feedd/ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for path, name, member in named:
        tree = next((trees[where] for root in ROOTS if (where := f"{root}/{path}".removeprefix("./")) in trees), None)
        assert tree is not None, path
        assert not name or name in set(_defined(tree.body)), f"{path}: {name}"
        assert not member or member in _methods(tree, name), f"{path}: {name}.{member}"


def test_methods_that_the_architecture_names_exist() -> None:
    """A method that is named without its file is one of a class of the product."""
    named = METHOD.findall((ROOT / "feedd/ARCHITECTURE.md").read_text(encoding="utf-8"))
    trees = [source.tree for source in sources() if source.is_product]
    assert len(named) > 1
    for name, member in named:
        assert any(member in _methods(tree, name) for tree in trees), f"{name}.{member}"
