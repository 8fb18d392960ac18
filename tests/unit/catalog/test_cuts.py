"""What cutting files of tokens leaves out: counted by their sizes alone, before anything is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.token_windows import token_files
from feedd.formats.tokens import LLMC, TokenWindows
from feedd.notices import Amount, NoticeKind
from feedd.values import ObjectRef


def _left_out(cut: TokenWindows, *token_counts: int, named: str = "", head_bytes: int = 0) -> dict[NoticeKind, Amount]:
    sizes = (head_bytes + count * cut.item_bytes for count in token_counts)
    refs = [ObjectRef("s3://b", f"t/{number}.bin", size, "tag") for number, size in enumerate(sizes)]
    names = dict.fromkeys(range(len(refs)), named) if named else {}
    return token_files(refs, (0,), (cut,), names).left_out


def test_tails_are_counted_by_file() -> None:
    """Of each file, the tokens behind the last whole window; files that end with a window have none."""
    found = _left_out(TokenWindows("uint16", 65, 64), 150, 129, 2000)
    tail = 2000 - (64 * 30 + 65)
    assert found == {
        NoticeKind.CUT_TAILS: Amount(2, 2 * (21 + tail), ("t/0.bin: 21 tokens", f"t/2.bin: {tail} tokens"))
    }


def test_files_shorter_than_a_window_are_apart() -> None:
    """None of their tokens is in a sample, which may be more than a user expects."""
    found = _left_out(TokenWindows("uint32", 65, 64), 64, 65, 0)
    assert found == {NoticeKind.SHORT_FILES: Amount(1, 256, ("t/0.bin: 64 tokens",))}


def test_a_head_holds_no_tokens() -> None:
    """The bytes of llm.c's header are none of those that are left out."""
    assert _left_out(TokenWindows("uint16", 10, 10), 30, named=LLMC, head_bytes=1024) == {}


def test_nothing_is_left_out_where_the_last_window_is_filled() -> None:
    """Every token of a file is in a window then."""
    assert _left_out(TokenWindows("uint16", 65, 64, "pad"), 150, 129, 3) == {}


@pytest.mark.parametrize("last", ["drop", "pad"])
@given(tokens=st.integers(0, 60), count=st.integers(1, 9), stride=st.integers(1, 9))
def test_what_is_left_is_behind_all_windows(last: str, tokens: int, count: int, stride: int) -> None:
    """Windows and what is left end where the file does, unless windows are further apart than they are long."""
    cut = TokenWindows("uint16", count, stride, last)  # type: ignore[arg-type]  # a literal
    starts = range(0, cut.windows(tokens) * stride, stride)
    end = max((min(start + count, tokens) for start in starts), default=0)
    assert cut.left(tokens) == (tokens - end if last == "drop" else 0)
    if last == "pad" and stride <= count:
        assert end == tokens
