"""Spans of an object hold the samples that the whole object would hold, under the same keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.object_spans import SampleGrid, is_span, object_of, split
from feedd.formats.tokens import RAW, TokensFormat, TokenWindows, window_count, with_windows
from feedd.values import ObjectRef

COUNTS = st.integers(1, 40)


def _grid(tokens: int, windows: TokenWindows, head_bytes: int = 0) -> SampleGrid:
    size_bytes = tokens * windows.item_bytes
    count = window_count(RAW, size_bytes, windows)
    step_bytes, window_bytes = windows.stride * windows.item_bytes, windows.count * windows.item_bytes
    return SampleGrid(head_bytes, step_bytes, window_bytes, count, "tokens", f"{windows.dtype}[]")


@pytest.mark.parametrize("last", ["drop", "pad"])
@given(tokens=st.integers(0, 3000), count=COUNTS, stride=COUNTS, span_bytes=st.integers(64, 700))
def test_spans_hold_the_samples_of_the_object(last: str, tokens: int, count: int, stride: int, span_bytes: int) -> None:
    """Bytes and key of every sample, in order, none twice; no span is below the least size or twice as large."""
    windows = TokenWindows("uint16", count, stride, last)  # type: ignore[arg-type]  # a literal
    data = np.random.default_rng(tokens).integers(0, 1 << 16, tokens).astype(np.uint16).tobytes()
    ref = ObjectRef("s3://b", "t/0.bin", len(data), "a-tag-3")
    spans = split(ref, _grid(tokens, windows), span_bytes)
    if not spans:
        return
    whole = TokensFormat(RAW, with_windows(RAW, windows).partition(":")[2]).index(memoryview(data), ref.url)
    expected = [
        (whole.key(n), data[start : start + size])
        for n, (start, size) in enumerate(zip(whole.starts[0].tolist(), whole.sizes[0].tolist(), strict=True))
    ]
    found = []
    for shard, span in spans:
        assert is_span(shard)
        assert shard.url == ref.url
        origin, start = object_of(shard)
        assert origin == ref
        index = span.index(shard.size_bytes)
        assert index.sample_count == span.count > 0
        assert index.encoding_of(0) == whole.encoding_of(0)
        assert index.key_blob == b"".join(map(index.key_bytes, range(span.count)))
        for ordinal, (at, size) in enumerate(zip(index.starts[0].tolist(), index.sizes[0].tolist(), strict=True)):
            assert 0 <= at <= at + size <= shard.size_bytes
            found.append((index.key(ordinal), data[start + at : start + at + size]))
        most = span_bytes * 3 // 2 + 2 * windows.item_bytes * (count + stride)
        assert span_bytes - 2 * windows.item_bytes * (count + stride) <= shard.size_bytes <= most
    assert found == expected


def test_a_small_object_stays_whole() -> None:
    """Below twice the least size there is one shard, and so is an object of a single large sample."""
    grid = SampleGrid(0, 10, 10, 19, "data", "uint8[10]")
    assert split(ObjectRef("s3://b", "a.npy", 190, "tag"), grid, 100) == []
    assert (
        split(ObjectRef("s3://b", "a.npy", 1000, "tag"), SampleGrid(0, 1000, 1000, 1, "data", "uint8[1000]"), 100) == []
    )
    assert (
        len(split(ObjectRef("s3://b", "a.npy", 200, "tag"), SampleGrid(0, 10, 10, 20, "data", "uint8[10]"), 100)) == 2
    )


def test_a_header_is_in_no_span() -> None:
    """The first span begins behind the header of the object."""
    grid = SampleGrid(128, 4, 4, 100, "data", "int32")
    spans = split(ObjectRef("file://", "/d/a.npy", 528, "7-8-9"), grid, 100)
    assert [object_of(ref)[1] for ref, _ in spans] == [128, 228, 328, 428]
    assert [ref.size_bytes for ref, _ in spans] == [100] * 4
    assert object_of(spans[0][0])[0].etag == "7-8-9"


def test_keys_grow_beyond_eight_digits() -> None:
    """Numbers of nine digits follow those of eight."""
    grid = SampleGrid(0, 1, 1, 10**8 + 6, "data", "uint8")
    spans = split(ObjectRef("s3://b", "a.npy", grid.count, "tag"), grid, 300_000)
    shard, span = spans[-1]
    index = span.index(shard.size_bytes)
    ordinal = 10**8 - span.first
    assert [index.key(ordinal - 1), index.key(ordinal)] == ["99999999", "100000000"]
    ends = index.key_ends
    assert index.key_blob[ends[ordinal - 2] : ends[ordinal]] == b"99999999100000000"
    assert len(index.key_blob) == ends[-1]
