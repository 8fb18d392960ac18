"""Lines as samples."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.formats import lines
from feedd.formats.format_registry import format_for, get
from feedd.recipe.recipe import default_fields
from tests.budget import budget


@settings(max_examples=budget(200), deadline=None)
@given(
    text=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"xyz", b" "])).map(b"".join), piece=st.integers(1, 9)
)
def test_lines_are_those_python_splits(text: bytes, piece: int) -> None:
    """Every line that is not blank is a sample, without its end, however the scan is cut into pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_PIECE_BYTES", piece)
        index = get("text").index(memoryview(text), "s3://b/a.txt")
    wanted = [line.removesuffix(b"\r") for line in text.split(b"\n")]
    found = [
        text[start : start + size]
        for start, size in zip(index.starts[0].tolist(), index.sizes[0].tolist(), strict=True)
    ]
    assert found == [line for line in wanted if line]


@pytest.mark.parametrize(("name", "format_name", "codec"), [("a.txt", "text", "str"), ("a.JSONL", "jsonl", "json")])
def test_what_a_line_is(name: str, format_name: str, codec: str) -> None:
    """Lines of text are text, lines of JSON Lines are JSON."""
    assert format_for(f"s3://b/{name}") == format_name
    index = get(format_name).index(memoryview(b"{}\n"), name)
    (recipe,) = default_fields(index.fields, index.encodings)
    assert recipe.codec == codec
