"""Documents and docstrings are short and plain: lengths of sentences, of the README and of ARCHITECTURE."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tests.tidy.tree import ROOT, sources, tracked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.tidy.tree import Source

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
_DOUBLE_CODE: Final = re.compile(r"``[^`]+``")
_SECTION: Final = re.compile(r"(?:Args|Attributes|Raises|Returns|Yields):$")
_BULLET: Final = re.compile(r"[-*] ")
_RULE: Final = re.compile(r"[=\-+ |]+$")
_DRAWN: Final = re.compile(r"[│├└─ ]+")
_INDENT: Final = 4


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


def _docstring_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring: an entry of a section, a cell, a row and an item are one each."""
    lines: list[str] = []
    in_section = in_table = in_literal = False
    for line in [*text.splitlines(), ""]:
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        in_literal = in_literal and (not stripped or indent > 0)
        ruled = bool(stripped) and _RULE.match(stripped) is not None
        in_table = bool(stripped) and (in_table or (stripped.startswith("==") and ruled))
        drawn = stripped[:1] in {"|", "│", "├", "└"}
        new = indent == 0 if in_table else in_section and indent == _INDENT
        if lines and (not stripped or ruled or drawn or new or _BULLET.match(stripped) or _SECTION.match(stripped)):
            yield " ".join(lines)
            lines = []
        in_section = _SECTION.match(stripped) is not None if stripped and not indent else in_section
        if stripped.startswith("|") and not ruled:
            yield from (cell.strip() for cell in stripped.strip("|").split("|"))
        elif stripped and not (ruled or in_literal or _SECTION.match(stripped)):
            lines.append(_DRAWN.sub("", stripped, count=1) if drawn else _BULLET.sub("", stripped, count=1))
        in_literal = in_literal or stripped.endswith("::")


def docstring_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring without its indentation; code counts as one word."""
    for paragraph in _docstring_paragraphs(_CODE.sub("X", _DOUBLE_CODE.sub("X", text))):
        yield from _END.split(paragraph)


def _docstrings(source: Source) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions, and those behind constants."""
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, _, rest = node.value.value.partition("\n")
            yield f"{first.strip()}\n{_dedented(rest)}"


def _dedented(text: str) -> str:
    """Return text without the indentation that all its lines have."""
    lines = text.splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)


def memory_left(source: Source) -> str:
    """Return the room of a product file: its folder in feedd, ``feedd`` for the modules above them, or ``client``."""
    top, *below = source.path.parts
    return "client" if top == "client" else below[0] if len(below) > 1 else top


def long_docstrings(rooms: Collection[str]) -> list[str]:
    """Return the sentences in docstrings of some rooms that are too long, and their 95th percentile if that is."""
    found = [
        (len(sentence.split()), f"{source.path}: {sentence}")
        for source in sources()
        if source.is_product and memory_left(source) in rooms
        for text in _docstrings(source)
        for sentence in docstring_sentences(text)
    ]
    assert found, f"no docstrings in {rooms}"
    p95 = sorted(words for words, _ in found)[int(0.95 * len(found))]
    return [
        *(sentence for words, sentence in found if words > _WORDS_MAX),
        *([f"95 of 100 sentences have at most {p95} words"] if p95 > _WORDS_P95 else []),
    ]


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


def test_sentences_of_docstrings_are_found() -> None:
    """Entries of sections, cells, rows of tables and drawings are paragraphs; literal blocks are none."""
    text = """Return ``a b``. A `c d` stays at
1. sentence.

| e f | g |
|---|---|

===  ===
h    i
===  ===
j    k
     l
===  ===

- o

::

    no no

└── m n
Args:
    o: p q. R
        s.
    t: u.
Raises:
    V: w.
"""
    expected = ["Return X.", "A X stays at 1. sentence.", "e f", "g", "h    i", "j    k l", "o", "::", "m n"]
    assert [*docstring_sentences(text)] == [*expected, "o: p q.", "R s.", "t: u.", "V: w."]


def test_docstrings_are_short() -> None:
    """No sentence of a docstring is longer than 45 words, and 19 of 20 have at most 30."""
    assert long_docstrings({memory_left(source) for source in sources() if source.is_product}) == []


def test_first_pages_are_short() -> None:
    """README is read in minutes, ARCHITECTURE in an hour."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= _README_WORDS
    assert len((ROOT / "feedd" / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= _ARCHITECTURE_LINES
