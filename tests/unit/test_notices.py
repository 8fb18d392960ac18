"""What a user is told of data that is left out: one line each, bounded, whatever names the data has."""

from __future__ import annotations

import pytest

from feedd.notices import (
    ABOUT,
    EXAMPLES_MAX,
    NOTICES_MAX,
    TEXT_CHARS_MAX,
    Amount,
    Notice,
    NoticeKind,
    notices_of,
    summed,
)


def test_a_notice_says_how_much_is_left_out_of_what_and_what_to_do() -> None:
    """The line has the count, the size, the first names, how many more there are, and the hint."""
    amount = Amount(5, 3 << 20, ("t/_a/0.tar", "t/_a/1.tar", "t/_a/2.tar"))
    text = Notice(NoticeKind.HIDDEN_SHARDS, amount).text
    assert text.startswith("objects below a folder or name that begins with . or _ are not read")
    assert ": 5, 3MiB (t/_a/0.tar, t/_a/1.tar, t/_a/2.tar and 2 more); rename them" in text


@pytest.mark.parametrize("kind", NoticeKind)
def test_every_kind_has_a_bounded_line_of_printable_text(kind: NoticeKind) -> None:
    """Whatever an object is called, the line is one line, and no longer than the contract says."""
    assert ABOUT[kind].hint or not ABOUT[kind].warns, "a warning says what to do"
    text = Notice(kind, Amount(1 << 60, 1 << 60, ("a\n\x1b[31m" + "x" * 5000,) * EXAMPLES_MAX)).text
    assert text.isprintable()
    assert len(text) <= TEXT_CHARS_MAX
    assert "a??[31mxxx" in text


def test_amounts_add_up() -> None:
    """Counts and sizes of several sources are summed, and the first names are kept."""
    one = {NoticeKind.SIDE_FILES: Amount(2, 10, ("a", "b"))}
    both = summed([one, {NoticeKind.SIDE_FILES: Amount(3, 5, ("c", "d", "e")), NoticeKind.HIDDEN_FILES: Amount(1)}])
    assert both == {NoticeKind.SIDE_FILES: Amount(5, 15, ("a", "b", "c")), NoticeKind.HIDDEN_FILES: Amount(1)}


def test_warnings_come_first_and_nothing_of_nothing() -> None:
    """A kind of which there is none is no notice, and what may be data goes before what is none."""
    found = notices_of({kind: Amount(int(kind is not NoticeKind.UNREAD_COLUMNS)) for kind in NoticeKind})
    assert len(found) == len(NoticeKind) - 1 <= NOTICES_MAX
    warned = [notice.warns for notice in found]
    assert warned == sorted(warned, reverse=True)
