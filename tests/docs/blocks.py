"""Fenced blocks of the documents, and the comments that say what a block needs.

A comment stands directly before its block, and readers do not see it::

    <!-- test: parse only: needs a Kubernetes cluster -->
    <!-- test: scene checkpoint -->
    <!-- test: prints: what the Python block before it prints -->

``parse only`` gives the reason. ``scene`` names an entry of ``tests.docs.scenes``. ``before`` and ``after`` mark the
two scripts of a migration guide. A block without a comment runs as it stands.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.tidy.tree import ROOT, tracked

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK: Final = re.compile(
    r"(?:^<!-- test: (?P<marker>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARKER: Final = re.compile(r"<!-- test:")
KINDS: Final = ("before", "after", "scene", "parse only", "prints")
"""What a comment may begin with."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        path: of its document, below the root of the tree.
        line: number of the line of the opening fence.
        language: word behind the opening fence, or empty.
        kind: one of ``KINDS``, or empty.
        detail: the rest of the comment: a reason, or a name.
        body: text between the fences.
    """

    path: Path
    line: int
    language: str
    kind: str
    detail: str
    body: str

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.path}:{self.line}"


def _of(path: Path) -> list[Block]:
    text = (ROOT / path).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        marker = match["marker"] or ""
        kind = next((kind for kind in KINDS if re.match(rf"{kind}\b", marker)), "")
        line = text.count("\n", 0, match.start("language")) + 1
        detail = marker.removeprefix(kind).lstrip(": ")
        assert bool(kind) == bool(marker), f"{path}:{line}: expected one of {KINDS}, got {marker!r}"
        assert detail or kind in {"", "before", "after", "prints"}, f"{path}:{line}: expected a reason or a name"
        found.append(Block(path, line, match["language"], kind, detail, match["body"]))
    markers, used = len(_MARKER.findall(text)), sum(bool(block.kind) for block in found)
    assert markers == used, f"{path}: expected each comment directly before a block, got {markers - used} elsewhere"
    return found


@functools.cache
def blocks() -> tuple[Block, ...]:
    """Return the blocks of README.md and of everything below docs/."""
    documents = [path for path in tracked() if path.suffix == ".md" and path.parts[0] in {"README.md", "docs"}]
    return tuple(block for path in documents for block in _of(path))


def guide(name: str, kind: str) -> str:
    """Return a script of a migration guide.

    Args:
        name: of the guide, such as ``webdataset``.
        kind: ``before`` or ``after``.
    """
    (found,) = [block.body for block in blocks() if block.path.stem == name and block.kind == kind]
    return found
