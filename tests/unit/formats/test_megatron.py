"""Documents of Megatron's indexed datasets: where an index says they lie."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadShard
from feedd.formats import megatron as reader
from feedd.formats.format_registry import get
from feedd.formats.megatron import (
    HEAD_BYTES,
    MEGATRON,
    MegatronIndex,
    dtype_of,
    index_file_of,
    parse_head,
    with_index_file,
)
from tests.fakes.megatron import Builder, megatron

if TYPE_CHECKING:
    from feedd.shard_index import ShardIndex

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64", "uint16")
_DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 100), max_size=5), max_size=3), max_size=8)


def index_of(index: bytes, tokens_bytes: int) -> ShardIndex:
    """Read an index as a worker does."""
    name = with_index_file(MegatronIndex("etag", len(index), tokens_bytes))
    return get(name).index(memoryview(index), "s3://b/0.idx")


def samples(index: ShardIndex, tokens: bytes) -> list[list[int]]:
    """Return the tokens of each sample."""
    (stored,) = index.encodings
    dtype = np.dtype(stored.removesuffix("[]"))
    spans = zip(index.starts[0].tolist(), index.sizes[0].tolist(), strict=True)
    return [np.frombuffer(tokens[start : start + size], dtype).tolist() for start, size in spans]


@given(_DOCUMENTS, st.sampled_from(DTYPES), st.booleans())
def test_documents_come_back(documents: list[list[list[int]]], dtype: str, multimodal: bool) -> None:
    """All sequences of a document are one sample, empty ones included; of any type, with modes or without."""
    builder = Builder(dtype)
    for document in documents:
        for sequence in document:
            builder.item(sequence, 1 if multimodal else None)
        builder.end_document()
    data = builder.index()
    index = index_of(data, len(builder.tokens))
    assert samples(index, builder.tokens) == [[token for one in document for token in one] for document in documents]
    assert index.sample_count == len(documents) == parse_head(data[:HEAD_BYTES], len(data), "x").documents
    assert index.fields == ("tokens",)


def test_names_hold_what_is_told() -> None:
    """What is known of an index travels in the format's name, and other names say nothing."""
    told = MegatronIndex('a"b:c', 7, 9)
    assert index_file_of(with_index_file(told)) == told
    assert index_file_of(MEGATRON) is None
    assert index_file_of("tokens:{}") is None
    assert dtype_of(megatron([[1]], "uint16")[0]) == "uint16"
    assert dtype_of(b"MMIDIDX") == ""


def damaged() -> list[tuple[str, bytes, str]]:
    """Return indexes that contradict themselves, or the 30 bytes of tokens beside them."""
    index, _ = megatron([range(5), range(3), range(7)], "int16")
    lengths, pointers, firsts = HEAD_BYTES, HEAD_BYTES + 12, HEAD_BYTES + 36

    def at(place: int, data: bytes) -> bytes:
        return index[:place] + data + index[place + len(data) :]

    return [
        ("magic", b"X" + index[1:], "MMIDIDX"),
        ("version", at(9, struct.pack("<Q", 2)), "version"),
        ("type", at(17, b"\x09"), "type of 1 to 8"),
        ("no type", at(17, b"\0"), "type of 1 to 8"),
        ("sequences", at(18, struct.pack("<Q", 1 << 60)), "numbers of sequences"),
        ("documents", at(26, struct.pack("<Q", 0)), "numbers of sequences"),
        ("short", index[:-1], "numbers of sequences"),
        ("shorter", index[:20], "34 bytes"),
        ("negative", at(lengths, struct.pack("<i", -5)), "lengths"),
        ("larger", at(lengths, struct.pack("<i", 6)), "30 bytes"),
        ("pointer", at(pointers + 8, struct.pack("<q", 12)), "at byte 54"),
        ("first", at(firsts, struct.pack("<q", 1)), "from sequence 0"),
        ("last", at(firsts + 24, struct.pack("<q", 2)), "from sequence 0"),
        ("backwards", at(firsts + 8, struct.pack("<q", 3)), "backwards"),
    ]


@pytest.mark.parametrize(("data", "message"), [(data, message) for _, data, message in damaged()])
def test_what_an_index_cannot_say(data: bytes, message: str) -> None:
    """An index that cannot be true is a bad shard that says where."""
    with pytest.raises(BadShard, match=message) as refused:
        index_of(data, 30)
    assert refused.value.object == "s3://b/0.idx"


def test_another_file_of_tokens_is_refused() -> None:
    """An index of a file that was written anew, and one that nobody looked for."""
    index, tokens = megatron([range(5)], "int16")
    assert index_of(index, len(tokens)).sample_count == 1
    with pytest.raises(BadShard, match="12 bytes"):
        index_of(index, 12)
    with pytest.raises(BadShard, match="index beside"):
        get(MEGATRON).index(memoryview(tokens), "s3://b/0.bin")


def test_too_large_a_document_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is larger than a batch could ever be."""
    monkeypatch.setattr(reader, "SAMPLE_BYTES_MAX", 9)
    index, tokens = megatron([range(5)], "int16")
    with pytest.raises(BadShard, match="at most 9 bytes"):
        index_of(index, len(tokens))


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 120))
def test_any_bytes_make_an_index_or_an_error(noise: bytes, at: int, tokens_bytes: int) -> None:
    """Nothing of an index is trusted, and no sample reaches beyond its file."""
    whole, _ = megatron([range(5), [], range(7)], "int16")
    for data in (noise, whole[:at] + noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            index = index_of(data, tokens_bytes)
        except BadShard:
            continue
        ends = index.starts + index.sizes
        assert (index.starts >= 0).all()
        assert (index.sizes >= 0).all()
        assert (ends <= tokens_bytes).all()
