"""A kind of notice has a place that raises it, a row in the documents and a test, or it is none."""

from __future__ import annotations

import re

import pytest

from feedd.notices import ABOUT, NoticeKind
from tests.tidy.tree import ROOT, sources

PAGE = ROOT / "docs" / "guides" / "bad-samples.md"


def test_the_documents_have_a_row_for_every_kind() -> None:
    """The table in docs/guides/bad-samples.md is the one that feedd/notices.py gives, row by row."""
    rows = [
        f"| `{kind.value}` | {'warning' if ABOUT[kind].warns else 'stats only'} | {ABOUT[kind].what} |"
        for kind in NoticeKind
    ]
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows) in text, "docs/guides/bad-samples.md: replace the rows of the table by:\n" + "\n".join(rows)
    assert set(ABOUT) == set(NoticeKind)


@pytest.mark.parametrize("kind", NoticeKind)
def test_every_kind_is_raised_and_tested(kind: NoticeKind) -> None:
    """Some room uses the kind, and some test outside this folder names it as a user meets it."""
    users = [s for s in sources() if re.search(rf"\bNoticeKind\.{kind.name}\b", s.text)]
    assert any(s.path.parts[0] == "feedd" and s.path.name != "notices.py" for s in users), "nothing raises it"
    tests = [s for s in sources() if s.path.parts[:2] in {("tests", "e2e"), ("tests", "unit"), ("tests", "fault")}]
    assert any(f'"{kind.value}"' in s.text for s in tests), f'no test names "{kind.value}"'
