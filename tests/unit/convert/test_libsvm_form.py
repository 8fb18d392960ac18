"""libsvm's text as a form, against a reading of it line by line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.convert import libsvm
from feedd.convert.libsvm import LIBSVM_CONVERTER
from feedd.errors import BadShard
from feedd.formats.missing_reasons import missing_reason
from tests.budget import budget
from tests.fakes.making import make


def test_rows_are_labels_and_pairs() -> None:
    """With comments, blank lines, any blanks, rows without pairs and numbers of any spelling."""
    made = make(LIBSVM_CONVERTER, b"+1 1:0.5 7:-2e3\n\n# nothing\r\n-1\t3:nan # bad\r\n0\n2.5  10:1")
    assert made.index.fields == ("label", "indices", "values")
    assert made.values("label") == [1.0, -1.0, 0.0, 2.5]
    assert made.values("indices") == [[1, 7], [3], [], [10]]
    assert repr(made.values("values")) == "[[0.5, -2000.0], [nan], [], [1.0]]"
    assert made.index.encodings == ("float32", "int64[]", "float32[]")


def test_rows_may_have_a_query() -> None:
    """As ranking has it: all or none."""
    made = make(LIBSVM_CONVERTER, b"1 qid:7 1:2\n0 qid:8\n")
    assert (made.values("qid"), made.values("indices"), made.values("values")) == ([7, 8], [[1], []], [[2.0], []])
    for text, at in (
        (b"1 qid:7 1:2\n0 1:2\n", 1),
        (b"0 1:2\n3\n1 qid:7 1:2\n", 2),
        (b"0 qid:1 1:1\n3\n1 qid:7 1:2\n", 1),
    ):
        labels = make(LIBSVM_CONVERTER, text).values("label")
        assert [row for row, label in enumerate(labels) if label is None] == [at]  # what fewer lines have is wrong
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libsvm, "_PIECE_BYTES", 12)
        for text in (b"1 qid:7 1:2\n0 1:2\n", b"0 1:2\n# nothing\n1 qid:7 1:2\n"):
            with pytest.raises(BadShard, match="expected qid in all lines or in none"):
                make(LIBSVM_CONVERTER, text)
        assert make(LIBSVM_CONVERTER, b"1 qid:7 1:2\n# nothing\n0 qid:8\n").values("qid") == [7, 8]


@pytest.mark.parametrize(
    "text", [b"1:2\n", b"1 2\n", b"1 1:2:3\n", b"a 1:2\n", b"1 :2\n", b"1 1:\n", b"1,2 1:3\n", b"1 1.5:2\n", b"1 e:1\n"]
)
def test_other_lines_are_refused(text: bytes) -> None:
    """What is no such row is a BadShard."""
    with pytest.raises(BadShard, match="label index:value"):
        make(LIBSVM_CONVERTER, text)


BAD = ["1:2", "1 2", "1 1:2:3", "a 1:2", "1 :2", "1 1:", "1,2 1:3", "1 1.5:2", "1 e:1", "1 1:2e", "+-1 1:1", "1 9e17:1"]
GOOD = ["1 1:0.5 7:-2e3", "0", "-1 3:nan", "2.5 10:1", "1 1:1 # 2:2"]


@settings(max_examples=budget(150), deadline=None)
@given(
    lines=st.lists(st.sampled_from([*BAD, *GOOD, *GOOD, *GOOD, "", "# 1 1:1"]), max_size=40),
    piece_bytes=st.sampled_from([1 << 22, 16, 40]),
)
def test_bad_lines_change_no_others(lines: list[str], piece_bytes: int) -> None:
    """What is no row has its place, and says why; every other row is what it is in a file without those."""
    rows = [line for line in lines if line.split("#")[0].strip()]
    good = [line for line in rows if line in GOOD]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libsvm, "_PIECE_BYTES", piece_bytes)
        try:
            made = make(LIBSVM_CONVERTER, "\n".join(lines).encode())
        except BadShard:
            assert len(rows) - len(good) > len(rows) // 2 or not good
            return
    wanted = make(LIBSVM_CONVERTER, "\n".join(good).encode())
    for name in ("label", "indices", "values"):
        alone = iter(wanted.values(name))
        assert repr(made.values(name)) == repr([next(alone) if line in GOOD else None for line in rows])
    bad = [row for row, line in enumerate(rows) if line in BAD]
    for row, line in enumerate(rows):
        told = missing_reason(made.index, [0], row)
        assert (told is None) == (line in GOOD)
        assert told is None or "label index:value" in told.reason
        assert told is None or bad.index(row) >= 16 or repr(line) in told.reason


def test_nothing_is_no_rows() -> None:
    """Empty files and comments."""
    for text in (b"", b"\n", b"# a\n"):
        assert make(LIBSVM_CONVERTER, text).index.sample_count == 0


ROW = st.tuples(
    st.integers(-5, 5), st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(width=32, allow_nan=False)), max_size=5)
)


@settings(max_examples=budget(100), deadline=None)
@given(st.lists(ROW, max_size=30), st.sampled_from([1 << 22, 16, 40]))
def test_any_rows_are_read_as_written(rows: list[tuple[int, list[tuple[int, float]]]], piece_bytes: int) -> None:
    """Wherever the text is cut into pieces."""
    text = "".join(f"{label} {' '.join(f'{i}:{v!r}' for i, v in pairs)}\n" for label, pairs in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libsvm, "_PIECE_BYTES", piece_bytes)
        made = make(LIBSVM_CONVERTER, text.encode())
    assert made.values("label") == [float(label) for label, _ in rows]
    assert made.values("indices") == [[i for i, _ in pairs] for _, pairs in rows]
    assert made.values("values") == [[float(np.float32(v)) for _, v in pairs] for _, pairs in rows]


@settings(max_examples=budget(200), deadline=None)
@given(st.one_of(st.binary(max_size=100), st.text("01 2:.-e+\nq#idna\t", max_size=60).map(str.encode)))
def test_no_bytes_do_harm(text: bytes) -> None:
    """Any text is a table, or refused as a bad shard."""
    try:
        make(LIBSVM_CONVERTER, text)
    except BadShard:
        return
