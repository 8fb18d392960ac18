"""What readers of shards have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard
from feedd.formats.format_registry import built_in, get
from feedd.formats.framing import CELLS_MAX, limited_index
from feedd.formats.megatron import MegatronIndex, with_index_file
from feedd.formats.tokens import LLMC, NPY, RAW, TokenWindows, with_windows
from feedd.shard_index import IndexLimits, numbered
from tests.budget import budget
from tests.fakes.megatron import megatron
from tests.fuzz.targets import CHUNK, LITDATA, TARGETS
from tests.unit.formats import test_tokens_format as tokens

CUT = TokenWindows("uint16", 8, 8)


@settings(max_examples=budget(40), deadline=None)
@given(sample_count=st.one_of(st.integers(0, 30), st.integers(9_990, 10_010), st.integers(0, 70_000)))
def test_samples_without_names_are_numbered(sample_count: int) -> None:
    """Keys are ordinals of eight digits, and sort as the samples lie."""
    blob, ends = numbered(sample_count)
    assert blob == b"".join(b"%08d" % ordinal for ordinal in range(sample_count))
    assert ends.dtype == np.int64
    assert ends.tolist() == [8 * (ordinal + 1) for ordinal in range(sample_count)]


_OTHER_PLACES = {"files", "auto"}  # the index of a pack comes from a listing, and "auto" is another format's reader
_WITH_PARAMS = {"litdata", "megatron", "tokens", "tokens-llmc", "tokens-npy"}
SHARDS = {
    name: target.seeds()[0] for name, target in TARGETS.items() if name in built_in() and name not in _WITH_PARAMS
} | {
    LITDATA: CHUNK,
    with_windows(RAW, CUT): tokens.raw(np.arange(41, dtype=np.uint16)),
    with_windows(LLMC, CUT): tokens.llmc(np.arange(40, dtype=np.uint16)),
    with_windows(NPY, CUT): tokens.npy(np.arange(40, dtype=np.uint16)),
    with_index_file(MegatronIndex("x", 0, 30)): megatron([range(5), range(3), range(7)], "int16")[0],
    "text": b"one\nthree\n",
    "jsonl": b"{}\n[1, 2]\n",
}


def test_every_format_has_a_shard_here() -> None:
    """No format is left out of the test of limits."""
    assert {name.partition(":")[0] for name in SHARDS} | _OTHER_PLACES >= set(built_in())


@pytest.mark.parametrize("name", sorted(SHARDS.keys() - _OTHER_PLACES))
def test_each_format_refuses_an_index_beyond_its_limits(name: str) -> None:
    """The reader itself refuses too many samples or bytes, and names the option; at the limits it reads."""
    data = memoryview(SHARDS[name])
    index = get(name).index(data, "s3://b/a")
    samples = index.sample_count
    assert samples
    key_bytes = 0 if index.is_numbered else 16
    columns = 2 if name == "table" else len(index.fields)  # a column of fixed width takes nothing
    size_bytes = 0 if index.is_regular else (16 + 4 * columns + key_bytes) * samples
    with limited_index(IndexLimits(size_bytes, samples)):
        assert get(name).index(data, "s3://b/a").sample_count == samples
    few = [IndexLimits(1 << 40, samples - 1)]
    if size_bytes:
        few.append(IndexLimits(size_bytes - 1, samples))
    for limits in few:
        with limited_index(limits), pytest.raises(BadShard) as caught:
            get(name).index(data, "s3://b/a")
        assert caught.value.object == "s3://b/a"
        assert "decode.index_size" in caught.value.hint


@pytest.mark.parametrize("line", [b"a\n", b"{}\n"])
def test_equal_lines_take_no_memory(line: bytes) -> None:
    """Lines of one length need no columns until a line differs; both indexes name the same lines."""
    index = get("text").index(memoryview(line * 1000), "")
    assert index.is_regular
    other = get("text").index(memoryview(line * 1000 + b"longer\n"), "")
    assert not other.is_regular
    assert np.array_equal(other.starts[0, :-1], index.starts[0])
    assert np.array_equal(other.sizes[0, :-1], index.sizes[0])


@given(index_bytes=st.integers(0, 1 << 40), object_bytes=st.integers(0, 1 << 44), is_converted=st.booleans())
def test_a_large_object_may_have_a_large_index(index_bytes: int, object_bytes: int, is_converted: bool) -> None:
    """Limits grow with the option and with the object, and never exceed what a format supports."""
    limits = IndexLimits.of(index_bytes, object_bytes, is_converted=is_converted)
    assert limits.size_bytes == max(index_bytes, (6 if is_converted else 12) * object_bytes)
    assert limits.samples == min(CELLS_MAX, max(limits.size_bytes // 16, 0 if is_converted else object_bytes))
    limits.check(0, limits.samples, "")
    if limits.size_bytes > 16:
        limits.check(limits.size_bytes - 16, 1, "")
    for columns_bytes, samples in ((0, limits.samples + 1), (max(1, limits.size_bytes - 15), 1)):
        with pytest.raises(BadShard, match="expected"):
            limits.check(columns_bytes, samples, "")
