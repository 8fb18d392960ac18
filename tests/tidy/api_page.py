"""The tables of arguments in docs/reference/api.md, made of the docstrings. A forge shows no docstrings.

To renew them: ``python -m tests.tidy.api_page``.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Final

from tests.tidy.tree import ROOT, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = ROOT / "docs" / "reference" / "api.md"
_TABLE: Final = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end of table -->\n", re.DOTALL)
_ENTRY: Final = re.compile(r"    (\w+): (.*)")


def page() -> str:
    """Return the page with renewed tables."""
    return _TABLE.sub(lambda match: _table(match[1]), PAGE.read_text(encoding="utf-8"))


def _table(name: str) -> str:
    """Return the table of a class of the client, with its marks."""
    (node,) = (
        node
        for source in sources()
        if source.path.parts[0] == "client"
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    defaults = {one: _constants().get(default, default) for one, default in _defaults(node)}
    rows = [f"| `{one}` | {_code(defaults.get(one, ''))} | {text} |" for one, text in _entries(node)]
    assert rows, name
    head = ["| name | default | meaning |", "|---|---|---|"] if any(defaults.values()) else None
    if head is None:
        head = ["| name | meaning |", "|---|---|"]
        rows = [f"| `{one}` | {text} |" for one, text in _entries(node)]
    return "\n".join([f"<!-- table: {name} -->", *head, *rows, "<!-- end of table -->", ""])


def _entries(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line of a docstring's arguments or attributes."""
    lines = (ast.get_docstring(node) or "").splitlines()
    begin = next(number for number, line in enumerate(lines) if line in {"Args:", "Attributes:"})
    found: list[tuple[str, str]] = []
    for line in lines[begin + 1 :]:
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.fullmatch(line):
            found.append((entry[1], entry[2]))
        elif line.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    yield from ((name, text.replace("``", "`").replace("|", "\\|")) for name, text in found)


def _defaults(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each argument of the constructor, or field of a dataclass, and its default; empty: it has none."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id, "" if item.value is None else ast.unparse(item.value)
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = item.args
            plain = arguments.posonlyargs + arguments.args
            values = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
            for one, value in [
                *zip(plain, values, strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]:
                yield one.arg, "" if value is None else ast.unparse(value)


@functools.cache
def _constants() -> dict[str, str]:
    """Return the values of the client's public constants, as they are written."""
    return {
        item.target.id: ast.unparse(item.value)
        for source in sources()
        if source.path.parts[0] == "client"
        for item in source.tree.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
    }


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
