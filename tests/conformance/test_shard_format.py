"""One suite for every shard format: what a ShardFormat must do with good and with broken shards."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as registry
from tests.budget import budget
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ShardFormat

Samples = list[tuple[str, dict[str, bytes]]]

LONG = "deep/" * 30 + "k" * 120
SAMPLES: Samples = [
    ("a/0001", {"jpg": b"first", "cls": b"1"}),
    ("a/0002", {"cls": b"", "jpg": b"x" * 513}),
    ("a/0003", {"seg.png": bytes(range(256)) * 7, "jpg": b"third"}),
    ("ünïcode/0004", {"jpg": b"fourth", "txt": "grün".encode()}),
    (LONG, {"jpg": b"a name longer than any header field", "cls": b"5"}),
]


@dataclass(frozen=True)
class Writer:
    """A way to write shards of a format."""

    format_name: str
    write: Callable[[Samples], bytes]


WRITERS = {
    "tar-ustar": Writer("tar", lambda samples: tar_bytes([s for s in samples if len(s[0]) < 100])),
    "tar-gnu": Writer("tar", lambda samples: tar_bytes(samples, tarfile.GNU_FORMAT)),
    "tar-pax": Writer("tar", lambda samples: tar_bytes(samples, tarfile.PAX_FORMAT)),
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    """Each writer in turn."""
    return WRITERS[request.param]


@pytest.fixture
def reader(writer: Writer) -> ShardFormat:
    """The format that reads what ``writer`` writes."""
    return registry.get(writer.format_name)


def read_all(shard_format: ShardFormat, data: bytes) -> Samples:
    """Follow the index back to the samples."""
    index = shard_format.index(memoryview(data), "s3://b/shard")
    samples: Samples = []
    for ordinal in range(index.sample_count):
        fields = {}
        for column, name in enumerate(index.fields):
            size, start = int(index.sizes[column, ordinal]), int(index.starts[column, ordinal])
            if size >= 0:
                fields[name] = data[start : start + size]
        samples.append((index.key(ordinal), fields))
    return samples


def test_every_sample_is_found_with_its_bytes(writer: Writer, reader: ShardFormat) -> None:
    """The spans of the index are the bytes that were written, in order, with absent fields absent."""
    samples = SAMPLES[:4] if writer is WRITERS["tar-ustar"] else SAMPLES
    assert read_all(reader, writer.write(samples)) == samples


def test_a_shard_without_samples_is_empty_and_good(writer: Writer, reader: ShardFormat) -> None:
    """An empty archive is an index of no samples."""
    index = reader.index(memoryview(writer.write([])), "s3://b/shard")
    assert (index.sample_count, index.fields, index.starts.shape) == (0, (), (0, 0))


def test_columns_have_the_promised_types(writer: Writer, reader: ShardFormat) -> None:
    """Columns are int64, one row per field; an absent field has size -1."""
    index = reader.index(memoryview(writer.write(SAMPLES[:3])), "s3://b/shard")
    assert index.starts.dtype == index.sizes.dtype == index.key_ends.dtype == "int64"
    assert index.starts.shape == index.sizes.shape == (len(index.fields), 3)
    assert index.sizes[index.fields.index("cls")].tolist() == [1, 0, -1]


def test_a_shard_cut_short_anywhere_is_refused(writer: Writer, reader: ShardFormat) -> None:
    """Whatever the length it was cut to, a truncated shard raises BadShard that names url and byte."""
    data = writer.write(SAMPLES[:3])
    content_end = len(data.rstrip(b"\0"))
    for length in [*range(0, content_end, 97), content_end - 1, *range(0, content_end, 512)]:
        with pytest.raises(BadShard, match=r"expected .* at byte \d+, got") as caught:
            reader.index(memoryview(data)[:length], "s3://b/shard")
        assert caught.value.object == "s3://b/shard"


def test_other_files_are_refused(reader: ShardFormat) -> None:
    """Bytes that are not a shard at all raise BadShard."""
    for data in (b"", b"\xff\xd8\xff\xe0" * 1000, b"hello", bytes(range(256)) * 8, b"\x1f\x8b" + bytes(2000)):
        with pytest.raises(BadShard):
            reader.index(memoryview(data), "s3://b/shard")


@settings(max_examples=budget(150))
@given(data=st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Flipped, removed and inserted bytes give BadShard or an index within the shard; never another error."""
    writer = data.draw(st.sampled_from(list(WRITERS.values())))
    shard = bytearray(writer.write(SAMPLES[:3]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(shard) - 1))
        cut = data.draw(st.integers(0, 3))
        shard[at : at + cut] = data.draw(st.binary(max_size=3))
    try:
        index = registry.get(writer.format_name).index(memoryview(bytes(shard)), "s3://b/shard")
    except BadShard:
        return
    assert ((index.starts + index.sizes)[index.sizes >= 0] <= len(shard)).all()


@settings(max_examples=budget(150))
@given(data=st.binary(max_size=4096))
def test_noise_is_refused(data: bytes) -> None:
    """Arbitrary bytes never crash, hang or allocate: they are BadShard, or the empty archive."""
    for writer in WRITERS.values():
        try:
            index = registry.get(writer.format_name).index(memoryview(data), "s3://b/shard")
        except BadShard:
            continue
        assert index.sample_count == 0
        assert data[:512] == bytes(512)


def test_the_registry_knows_formats_by_extension() -> None:
    """``.tar`` is a tar in any case, packed or not; what cannot be a shard is Unsupported; else first bytes tell."""
    for name in ("dir.gz/a-000.TAR", "a.tar.gz", "a.TGZ", "a.tar.zst", "a.tar.bz2", "a.tar.xz"):
        assert registry.format_for(f"s3://b/{name}") == "tar"
    for name in ("a.tfrecord.gz", "a.tfrecord-00000-of-00010.gz", "a.tfrecord.gz-00000-of-00010"):
        assert registry.format_for(f"s3://b/{name}") == "tfrecord"
    for name in ("a.PTH", "a.pt"):
        assert registry.format_for(f"s3://b/{name}") == "torch"
    for name in ("a.gz", "gz", "noext", "tar"):
        assert registry.format_for(f"s3://b/{name}") == "auto"
    for url in (
        "s3://b/a.tar.lz4",
        "s3://b/a.beton",
        "s3://b/a.CKPT",
    ):
        with pytest.raises(Unsupported, match=r"\.tar"):
            registry.format_for(url)
    with pytest.raises(Unsupported, match="tar"):
        registry.get("beton")
