"""Caps: how long a file or function may be, and how many parameters a constructor takes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.tidy.tree import Function, size, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES = 900
FUNCTION_LINES = 60
FUNCTION_LINES_P95 = 40
PARAMETERS = 10
# What users type is their language, with the keywords the whole field uses.
PUBLIC_SIGNATURES = {"FeedDataset", "DeviceLoader"}


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _constructors() -> Iterator[tuple[str, str, Function]]:
    for source in sources():
        for node in source.classes():
            for item in node.body:
                if isinstance(item, Function) and item.name == "__init__":
                    yield str(source.path), node.name, item


def test_files_are_short() -> None:
    """No hand-written Python file is longer than the cap."""
    long = {str(source.path): source.line_count for source in sources() if source.line_count > FILE_LINES}
    assert not long


def test_functions_are_short() -> None:
    """No function is longer than the cap, and nearly all are far shorter."""
    sizes = {
        f"{source.path}:{node.lineno} {node.name}": size(node) for source in sources() for node in source.functions()
    }
    assert not {name: lines for name, lines in sizes.items() if lines > FUNCTION_LINES}
    ordered = sorted(sizes.values())
    assert ordered[int(0.95 * len(ordered))] <= FUNCTION_LINES_P95


def test_constructors_take_few_parameters() -> None:
    """A constructor takes no more parameters than the cap, except those of the users' own classes."""
    found: dict[str, int] = {}
    for path, name, item in _constructors():
        arguments = item.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
        if count > PARAMETERS and name not in PUBLIC_SIGNATURES:
            found[f"{path} {name}"] = count
    assert not found


def test_only_options_and_values_are_wide_dataclasses() -> None:
    """A dataclass with more fields than the cap is a frozen value: a mutable one would be a constructor in disguise."""
    found: list[str] = []
    for source in sources():
        if not source.is_product:
            continue
        for node in source.classes():
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            required = [item for item in fields if item.value is None]
            frozen = any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
            if _is_dataclass(node) and len(required) > PARAMETERS and not frozen:
                found.append(f"{source.path} {node.name}")
    assert not found
