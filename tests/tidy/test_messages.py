"""Messages that the documents quote are messages of the product; the client's errors have no second traceback."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from tests.tidy.tree import ROOT, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGES = ("docs/operate/troubleshooting.md", "docs/quickstart.md", "docs/guides/batches.md")
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z][A-Za-z'_-]*[,;:.)]?|\(?[A-Za-z][A-Za-z'_-]*")
_LEAST = 0.7  # a value may be a word too, and then the words around it are not together in the source
_RUN = 3
USERS_CODE = {"containers.py", "transforms.py"}  # what they call is the user's, and so is the traceback


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each three words that follow one another, with no number, URL, quote or gap between them."""
    run: list[str] = []
    for token in text.split():
        if _WORD.fullmatch(token) and not token.endswith("Error:"):
            run.append(token.strip("(),;:.").lower())
        else:
            run.clear()
        if len(run) >= _RUN:
            yield tuple(run[-_RUN:])


def _literals(node: ast.AST) -> str:
    """Return the text of a string, with a gap for each value in it."""
    match node:
        case ast.JoinedStr(values=values):
            return "".join(value.value if isinstance(value, ast.Constant) else " 0 " for value in values)  # type: ignore[misc]  # literal parts are text
        case ast.Constant(value=str(text)):
            return text
    return ""


@functools.cache
def _told() -> frozenset[tuple[str, ...]]:
    """Return all runs of words in strings of the product."""
    return frozenset(
        run
        for source in sources()
        if source.is_product
        for node in source.nodes
        for run in _runs(_literals(node).replace("{", " 0 ").replace("}", " 0 "))
    )


def test_messages_that_the_documents_quote_exist() -> None:
    """Of the words of each block of plain text, most stand together in a string of the product."""
    assert ("shards", "are", "kept") in _told()
    seen, stale = 0, []
    for page in _PAGES:
        for block in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
            runs = list(_runs(block))
            if not runs:
                continue
            seen += 1
            missing = [" ".join(run) for run in runs if run not in _told()]
            if len(missing) > (1 - _LEAST) * len(runs):
                stale.append(f"{page}: {block[:60]!r}: {missing}")
    assert seen > 15
    assert not stale, "\n".join(stale)


def test_no_error_is_chained_to_what_it_translates() -> None:
    """An error that translates another one is raised ``from None``: its own words are enough. Users' own stay."""
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        if source.path.parts[0] == "client" and source.path.name not in USERS_CODE
        for handler in source.nodes
        if isinstance(handler, ast.ExceptHandler) and handler.name is not None
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and isinstance(node.cause, ast.Name) and node.cause.id == handler.name
    ]
    assert not found
