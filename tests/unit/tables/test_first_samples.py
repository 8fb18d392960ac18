"""The first samples of a shard: as a shard of the same format, made of its first bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.conversion import Conversion
from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as formats
from feedd.tables import registry
from feedd.tables.outlines import HEAD_CONVERTER
from tests.budget import budget
from tests.fakes.files import npy
from tests.fakes.making import make
from tests.fakes.recordio import image_record, recordio
from tests.fakes.tars import jpeg, tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_litdata import chunk, index_json, reader
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from feedd.shard_index import ShardIndex

IMAGE = jpeg(np.zeros((8, 8, 3), np.uint8))


def shard(kind: str, count: int, value_bytes: int) -> tuple[str, bytes]:
    """Return a format and a shard of so many samples."""
    value = bytes(value_bytes)
    match kind:
        case "tar":
            data = tar_bytes([(f"{n:04}", {"npy": value, "cls": b"%d" % n}) for n in range(count)])
        case "tfrecord":
            data = tfrecord(*(example(n=[n], x=[0.5], raw=value) for n in range(count)))
        case "recordio":
            data = recordio(*(image_record(IMAGE + value, [float(n)], n) for n in range(count)))
        case "mds":
            samples = [{"n": n.to_bytes(8, "little"), "raw": value} for n in range(count)]
            data = mds({"n": "int", "raw": "bytes"}, samples)
        case "litdata":
            data = chunk(*[[b"%08d" % n, value] for n in range(count)])
            kind = reader(index_json(["str", "bytes"], ["n", "raw"], {"chunk-0-0.bin": (len(data), count)}))
        case "npy":
            data = npy(np.arange(count)[:, None] + np.zeros((1, max(1, value_bytes // 8)), np.int64))
        case _:
            data = b"".join(b'{"n": %d, "raw": "%s"}\n' % (n, b"x" * value_bytes) for n in range(count))
    return kind, data


KINDS = ("npy", "tar", "tfrecord", "recordio", "mds", "litdata", "text", "jsonl")


def index_of(name: str, data: bytes) -> ShardIndex:
    """Return where samples lie."""
    return formats.get(name).index(memoryview(data), "s3://b/a")


def values(index: ShardIndex, data: bytes, count: int) -> list[list[bytes]]:
    """Return the bytes of each field of the first samples."""
    places = zip(index.starts[:, :count].tolist(), index.sizes[:, :count].tolist(), strict=True)
    return [[data[at : at + size] for at, size in zip(*one, strict=True)] for one in places]


@pytest.mark.parametrize("kind", KINDS)
def test_first_samples_are_the_shards_own(kind: str) -> None:
    """Some MiB are fetched; fields, ways of storing, keys and bytes are those of the shard's first samples."""
    name, data = shard(kind, 12, 1 << 20)
    for asked in (name,) if kind in {"litdata", "text", "npy"} else (name, "auto"):
        assert registry.head_conversion(None, asked) == Conversion("head", asked)
        made = make(HEAD_CONVERTER, data, asked, limit_bytes=64 << 20) if asked == name else None
        assert made is None or made.fetched_bytes == 4 << 20
        if made is None:
            made = make(HEAD_CONVERTER, data, asked, limit_bytes=64 << 20)
        whole, head = index_of(name, data), made.index
        assert 2 <= head.sample_count <= 4
        assert (head.fields, head.encodings) == (whole.fields, whole.encodings)
        assert [head.key(n) for n in range(2)] == [whole.key(n) for n in range(2)]
        assert values(head, made.shard, 2) == values(whole, data, 2)


@pytest.mark.slow  # hundreds of megabytes
@pytest.mark.parametrize("kind", KINDS)
def test_larger_samples_take_more_bytes(kind: str) -> None:
    """32 MiB where 4 hold no whole sample; where those hold none, nothing: the shard itself must tell."""
    name, data = shard(kind, 3, 9 << 20)
    made = make(HEAD_CONVERTER, data, name, limit_bytes=64 << 20)
    assert made.index.sample_count >= 2
    name, data = shard(kind, 2, 33 << 20)
    made = make(HEAD_CONVERTER, data, name, limit_bytes=64 << 20)
    assert (made.index.sample_count, made.index.fields) == (0, ())
    assert made.fetched_bytes == 32 << 20


def test_what_has_no_head() -> None:
    """Archives with a directory at their end, arrays, and what is compressed."""
    for form, name in (("", "torch"), ("", "lmdb"), ("", "safetensors"), ("npz", ""), ("hdf5", ""), ("gunzip", "tar")):
        assert registry.head_conversion(Conversion.parse(form), name) is None
    assert registry.head_conversion(Conversion("parquet", '[["a"]]'), "") == Conversion(
        "parquet", '{"columns":[["a"]],"head":true}'
    )


def test_a_sample_of_a_tar_is_whole_where_the_next_begins() -> None:
    """Members that may still come are no missing fields; a last sample is whole where the archive ends."""
    first = tar_bytes([("a", {"x": b"1", "y": b"2"}), ("b", {"x": bytes(5 << 20)})])
    made = make(HEAD_CONVERTER, first, "tar", limit_bytes=64 << 20)
    assert (made.index.sample_count, made.index.fields) == (1, ("x", "y"))
    assert make(HEAD_CONVERTER, tar_bytes([("a", {"x": b"1"})]), "tar").index.sample_count == 1
    assert make(HEAD_CONVERTER, bytes(1024), "tar").index.sample_count == 0


SMALL = {kind: shard(kind, 3, 40) for kind in KINDS}


@settings(max_examples=budget(150), deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 3000),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4),
)
def test_no_first_bytes_do_harm(kind: str, cut: int, edits: list[tuple[int, int]]) -> None:
    """Cut and changed ones hold samples, or none, or are a bad shard."""
    name, data = SMALL[kind]
    changed = bytearray(data[: max(0, len(data) - cut)])
    for at, value in edits:
        if at < len(changed):
            changed[at] = value
    try:
        made = make(HEAD_CONVERTER, bytes(changed), name)
    except (BadShard, Unsupported):
        return
    assert made.index.sample_count <= 3 + len(edits)
