"""RecordIO: bytes, images with labels, and SageMaker's protobuf records."""

from __future__ import annotations

import itertools
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedd.dataset.sidecars import is_sidecar
from feedd.errors import BadShard, Unsupported
from feedd.formats.format_registry import format_for, get
from feedd.tables import registry as forms
from feedd.tables.files import FileOut, MappedObject
from feedd.values import ByteRange
from tests.budget import budget
from tests.fakes.reading import read
from tests.fakes.recordio import MAGIC, Record, dmlc, image_record, part, recordio

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATS = ("recordio", "recordio-image", "recordio-raw", "recordio-protobuf")
JPEG = b"\xff\xd8\xff\xe0"


def index(data: bytes, name: str = "recordio") -> Any:
    """Return the shard's index."""
    return get(name).index(memoryview(data), "s3://b/a.rec")


@given(payloads=st.lists(st.binary(max_size=40), max_size=8))
def test_whole_records_are_their_bytes(payloads: list[bytes]) -> None:
    """Whatever lengths, empty ones too: each record is found, in order."""
    shard = recordio(*payloads)
    found = index(shard, "recordio-raw")
    spans = zip(found.starts[0].tolist(), found.sizes[0].tolist(), strict=True)
    assert [shard[start : start + size] for start, size in spans] == payloads


@pytest.mark.parametrize(
    "split",
    [dmlc(b"abcd" + MAGIC + b"efg"), dmlc(MAGIC + MAGIC), part(b"abc", 1) + part(b"d", 3)],
    ids=["dmlc", "back to back", "anywhere"],
)
def test_split_records_are_refused(split: bytes) -> None:
    """A record that does not lie in one piece is told, with its place, and what to do."""
    with pytest.raises(BadShard, match="several parts at byte 12") as caught:
        index(recordio(b"abcd") + split)
    assert "recordio-join" in caught.value.hint


def joined(shard: bytes, params: str = "", url: str = "s3://b/a.rec") -> list[bytes]:
    """Return the records of the shard that is made of one with split records."""
    form = forms.get("join")
    with (
        memfd(shard) as source,
        memfd(b"") as target,
        MappedObject(source, len(shard), [ByteRange(0, len(shard))]) as held,
    ):
        assert form.wanted(held, params) in {(), (ByteRange(0, len(shard)),)}
        out = FileOut(target, 0, 1 << 20, 1 << 20, url)
        name = form.make(held, url, params, out)
        made = os.pread(target, out.at, 0)
    found = index(made, "recordio-raw")
    assert name == format_for(url)
    return [made[start:][:size] for start, size in zip(found.starts[0].tolist(), found.sizes[0].tolist(), strict=True)]


@contextmanager
def memfd(data: bytes) -> Iterator[int]:
    """Open a file of memory that holds ``data``."""
    fd = os.memfd_create("test")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


PIECES = st.lists(st.sampled_from([MAGIC, b"a", b"bcd", b"efgh"]), max_size=8).map(b"".join)


@settings(max_examples=budget(150), deadline=None)
@given(payloads=st.lists(PIECES, max_size=6))
def test_what_dmlc_splits_is_joined(payloads: list[bytes]) -> None:
    """Records that hold the magic, back to back and at any place, come out as they were written."""
    assert joined(b"".join(map(dmlc, payloads))) == payloads


@settings(max_examples=budget(150), deadline=None)
@given(payload=st.binary(min_size=2, max_size=40), cuts=st.sets(st.integers(1, 39), min_size=1, max_size=4))
def test_what_is_split_anywhere_is_joined(payload: bytes, cuts: set[int]) -> None:
    """As SageMaker's writers split: told by lengths that dmlc's never have, or said."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(payload)), len(payload)]
    pieces = [payload[low:high] for low, high in itertools.pairwise(edges)]
    kinds = [1, *[2] * (len(pieces) - 2), 3] if len(pieces) > 1 else [0]
    shard = recordio(b"abc") + b"".join(map(part, pieces, kinds)) + recordio(b"", b"d")
    assert joined(shard, "concat") == [b"abc", payload, b"", b"d"]
    if any(len(piece) % 4 for piece in pieces[:-1]):
        assert joined(shard) == [b"abc", payload, b"", b"d"]


def test_split_protobuf_records_are_joined_as_they_parse() -> None:
    """Where lengths do not tell the writer, the message does."""
    payload = record(3)
    shard = part(payload[:8], 1) + part(payload[8:12], 2) + part(payload[12:], 3)
    assert joined(shard, url="s3://b/a.pbr") == [payload]
    assert joined(shard, url="s3://b/a.rec") == [payload[:8] + MAGIC + payload[8:12] + MAGIC + payload[12:]]
    with pytest.raises(Unsupported, match="dmlc or concat"):
        joined(shard, "other")
    with pytest.raises(BadShard, match="the last part"):
        joined(part(b"a", 1))


@pytest.mark.parametrize(
    ("shard", "match"),
    [
        (b"\0" * 8, "magic"),
        (recordio(b"abc") + MAGIC + b"\0\0\0", "8 bytes of a part's header at byte 12"),
        (part(b"abcd")[:-1], "4 bytes of payload at byte 8"),
        (part(b"a", 2), "start of a record at byte 0"),
        (part(b"a", 3), "start of a record"),
        (part(b"a", 5), "start of a record"),
        (part(b"a", 1) + part(b"b", 0), "another part of the record at byte 12"),
        (part(b"a", 1) + part(b"b", 1), "another part"),
        (part(b"a", 1) + part(b"b", 2), "the last part of the record at byte 0"),
    ],
)
def test_broken_framing_is_told_with_its_place(shard: bytes, match: str) -> None:
    """No magic, a cut head or payload, and parts in an order that makes no record."""
    with pytest.raises(BadShard, match=match):
        index(shard)


def test_images_with_one_label() -> None:
    """What im2rec packs is told by its look, and decoded without a word."""
    shard = recordio(*(image_record(JPEG + bytes([n]), [n / 2], n + 7) for n in range(3)))
    samples = read(shard, "recordio", {"label": "float", "id": "int", "image": "image:raw"})
    assert [float(one["label"]) for one in samples] == [0, 0.5, 1]
    assert [int(one["id"]) for one in samples] == [7, 8, 9]
    assert [one["image"].tobytes() for one in samples] == [JPEG + bytes([n]) for n in range(3)]
    assert index(shard).encodings == ("float32", "uint64", "image")


def test_images_with_several_labels() -> None:
    """Labels of each image, as many as it has."""
    shard = recordio(image_record(JPEG, [1, 2, 3], 1), image_record(JPEG, [4], 2))
    samples = read(shard, "recordio", {"label": "array", "image": "image:raw"})
    assert [one["label"].tolist() for one in samples] == [[1, 2, 3], [4]]
    assert all(one["image"].tobytes() == JPEG for one in samples)


def test_the_url_may_say_what_records_are() -> None:
    """What looks like an image can be had as bytes, and what does not look like one as an image."""
    shard = recordio(image_record(JPEG, [1], 1))
    assert index(shard, "recordio-raw").fields == ("data",)
    odd = recordio(image_record(b"what", [1], 1))
    assert index(odd).fields == ("data",)
    assert index(odd, "recordio-image").fields == ("label", "id", "image")
    with pytest.raises(BadShard, match="header of 24 bytes"):
        index(recordio(b"short"), "recordio-image")
    with pytest.raises(BadShard, match="labels in a record"):
        index(recordio(struct.pack("<IfQQ", 9, 0, 0, 0)), "recordio-image")


def record(number: int) -> bytes:
    """Return a record with every kind of value."""
    made = Record()
    made.features["values"].float32tensor.values.extend([number, 0.5])
    made.features["big"].float64tensor.values.extend([number / 3])
    made.features["ids"].int32tensor.values.extend([number, -number])
    sparse = made.features["sparse"].float32tensor
    sparse.values.extend([1.0] * number)
    sparse.keys.extend(range(0, 300 * number, 300))
    sparse.shape.extend([1000])
    made.features["blob"].bytes.value.append(b"x" * number)
    made.label["values"].float32tensor.values.append(number)
    made.uid = f"u{number}"
    encoded: bytes = made.SerializeToString()
    return encoded


def test_protobuf_records() -> None:
    """Dense tensors, sparse ones, bytes, labels and texts, as protobuf's own encoder wrote them."""
    fields = dict.fromkeys(("values", "big", "ids", "sparse", "sparse.keys", "sparse.shape", "label_values"), "array")
    samples = read(recordio(*map(record, range(3))), "recordio-protobuf", fields | {"blob": "bytes", "uid": "str"})
    for number, one in enumerate(samples):
        assert one["values"].tolist() == [number, 0.5]
        assert one["big"].tolist() == [number / 3]
        assert one["ids"].tolist() == [number, -number]
        assert one["sparse"].tolist() == [1.0] * number
        assert one.get("sparse.keys", np.zeros(0)).tolist() == list(range(0, 300 * number, 300))
        assert one["sparse.shape"].tolist() == [1000]
        assert one["label_values"].tolist() == [number]
        assert one["blob"].tobytes() == b"x" * number
        assert one["uid"] == f"u{number}"


@settings(max_examples=budget(80), deadline=None)
@example([1, 1], ord("V"), 4)
@given(
    numbers=st.lists(st.sampled_from([1, 1, 1, 2, 3]), max_size=8), other=st.integers(0, 255), at=st.integers(0, 10**6)
)
def test_records_that_lie_alike_are_read_as_others(numbers: list[int], other: int, at: int) -> None:
    """Read together or each alone: the same spans, and the same refusal where a byte is another."""
    records = [bytearray(record(number)) for number in numbers]
    was = other
    if records:
        place = at % len(records[-1])
        was, records[-1][place] = records[-1][place], other
    shard = recordio(*map(bytes, records))
    try:
        alone = [index(recordio(bytes(one)), "recordio-protobuf") for one in records]
    except BadShard:
        with pytest.raises(BadShard):
            index(shard, "recordio-protobuf")
        return
    try:
        found = index(shard, "recordio-protobuf")
    except BadShard as error:
        same_letter = chr(was).lower() == chr(other).lower()  # "Values" is good alone, and not beside "values"
        assert ("more than case" if same_letter else " as ") in error.message  # noqa: PT017 - else: of other types
        return
    begin = 0
    for sample, one in enumerate(alone):
        for column, name in enumerate(one.fields):
            where = found.fields.index(name)
            assert found.starts[where, sample] == begin + one.starts[column, 0]
            assert found.sizes[where, sample] == one.sizes[column, 0]
            assert found.encodings[where] == one.encodings[column]
        lacking = [where for where, name in enumerate(found.fields) if name not in one.fields]
        assert (found.sizes[lacking, sample] == -1).all()
        begin += len(recordio(bytes(records[sample])))


def test_protobuf_types_that_change_are_an_error() -> None:
    """A feature that is float here and integer there has no one type."""
    one, other = Record(), Record()
    one.features["values"].float32tensor.values.append(1)
    other.features["values"].int32tensor.values.append(1)
    with pytest.raises(BadShard, match="'values' as"):
        index(recordio(one.SerializeToString(), other.SerializeToString()), "recordio-protobuf")
    with pytest.raises(BadShard, match="Record"):
        index(recordio(b"\xff\xff"), "recordio-protobuf")


def test_names() -> None:
    """Shards are known by their names; what MXNet writes beside them is none."""
    assert format_for("s3://b/train.rec") == format_for("s3://b/train.RecordIO") == "recordio"
    assert format_for("s3://b/a.pbr") == format_for("s3://b/a.protobuf") == "recordio-protobuf"
    assert is_sidecar("a/train.idx")
    assert is_sidecar("train.lst")


@settings(max_examples=budget(200), deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=5), st.integers(0, 5)), max_size=3),
    cut=st.integers(0, 600),
)
def test_no_bytes_do_harm(name: str, edits: list[tuple[int, bytes, int]], cut: int) -> None:
    """Changed, longer, shorter: an index within the shard, or a BadShard."""
    if name == "recordio-protobuf":
        shard = bytearray(recordio(record(1), record(2)))
    else:
        shard = bytearray(recordio(image_record(JPEG, [1, 2], 1), image_record(JPEG, [4], 2), b"", bytes(40)))
    for at, instead, width in edits:
        place = at % len(shard)
        shard[place : place + width] = instead
    data = bytes(shard[: len(shard) - cut] if cut % 3 == 0 else shard)
    try:
        found = index(data, name)
    except BadShard:
        return
    there = found.sizes >= 0
    assert (found.starts[there] >= 0).all()
    assert ((found.starts + found.sizes)[there] <= len(data)).all()
