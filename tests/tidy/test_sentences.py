"""Documents are short and plain: lengths of sentences, of the README and of ARCHITECTURE."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.tidy.tree import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS: Final = [
    path for path in tracked() if path.suffix == ".md" and (path.parts[0] in {"docs", "feedd"} or len(path.parts) == 1)
]
_WORDS_MAX, _WORDS_P95 = 45, 30
_README_WORDS, _ARCHITECTURE_LINES = 600, 250
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"(]|feedd\b)")


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*_COMMENT.sub("", _FENCE.sub("", text)).splitlines(), ""]:
        stripped = line.strip()
        begins = _ITEM.match(stripped)
        if lines and (not stripped or begins or stripped.startswith(("#", "|"))):
            yield " ".join(lines)
            lines = []
        if stripped.startswith("|"):
            yield from (cell.strip() for cell in stripped.strip("|").split("|"))
        elif stripped and not stripped.startswith("#"):
            lines.append(_ITEM.sub("", stripped, count=1) if begins else stripped)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a document; code counts as one word, a cell of a table as a paragraph."""
    for paragraph in _paragraphs(text):
        yield from _END.split(_LINK.sub(r"\1", _CODE.sub("X", paragraph)))


def test_sentences_are_found() -> None:
    """Paragraphs, items and cells are split where a reader stops."""
    text = "# Head\n\nOne two. Three `a b c`\nfour.\n\n- five. Six\n  seven\n- eight\n\n| nine ten | x |\n"
    text += "\n```\nno. No\n```\n"
    assert [*sentences(text)] == ["One two.", "Three X four.", "five.", "Six seven", "eight", "nine ten", "x"]


def test_sentences_are_short() -> None:
    """No sentence is longer than 45 words, and in every document 19 of 20 have at most 30."""
    long, often = [], []
    for path in DOCUMENTS:
        found = sorted(sentences((ROOT / path).read_text(encoding="utf-8")), key=lambda one: len(one.split()))
        long += [f"{path}: {one}" for one in found if len(one.split()) > _WORDS_MAX]
        often += [str(path)] if found and len(found[int(0.95 * len(found))].split()) > _WORDS_P95 else []
    assert (long, often) == ([], [])


def test_first_pages_are_short() -> None:
    """README is read in minutes, ARCHITECTURE in an hour."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= _README_WORDS
    assert len((ROOT / "feedd" / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= _ARCHITECTURE_LINES
