"""The writers: what each writes is what feedd's readers and the formats' own libraries read."""

from __future__ import annotations

import io
import random
import tarfile
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from feedd.errors import BadSample, Unsupported
from feedd.formats.mds import MdsFormat
from feedd.formats.recordio import MAGIC, PartsReader
from feedd.pack.packed_sample import Fields, PackedSample, Part
from feedd.pack.shard_writers import FORMATS, writer_of
from feedd.pack.tar_writer import header
from feedd.pack.tfrecord_writer import varint
from tests.fakes.reading import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def _samples(count: int, *parts: tuple[str, Any]) -> list[PackedSample]:
    """Return samples; a part is an extension and a function from the number of the sample to its bytes."""
    return [
        PackedSample(f"dir/s{n:04d}", [Part(end, f"dir/s{n:04d}.{end}", make(n)) for end, make in parts])
        for n in range(count)
    ]


def _fields(samples: Sequence[PackedSample]) -> Fields:
    counts: dict[str, int] = {}
    for sample in samples:
        for part in sample.parts:
            counts[part.extension] = counts.get(part.extension, 0) + 1
    return Fields(counts, len(samples))


def _written(name: str, samples: Sequence[PackedSample]) -> bytes:
    writer, fields = writer_of(name), _fields(samples)
    writer.check(fields)
    return b"".join(writer.pieces(samples, fields))


def _jpeg(n: int) -> bytes:
    return b"\xff\xd8\xff" + random.Random(n).randbytes(3000 + 37 * n)


def _label(n: int) -> bytes:
    return b"%d" % (n * 3 - 2)


IMAGES = _samples(40, ("jpg", _jpeg), ("cls", _label))


@pytest.mark.parametrize("name", ["tar", "tfrecord", "mds", "lmdb"])
def test_feedd_reads_images_and_labels(name: str) -> None:
    """Every sample has its image and its label, whatever the format."""
    found = read(_written(name, IMAGES), name, {"jpg": "bytes", "cls": "int"})
    assert [bytes(one["jpg"]) for one in found] == [_jpeg(n) for n in range(40)]
    assert [int(one["cls"]) for one in found] == [n * 3 - 2 for n in range(40)]


def test_recordio_holds_images_with_labels() -> None:
    """An image record has the label in front, and the number of the sample as its id."""
    found = read(_written("recordio", IMAGES), "recordio", {"image": "bytes", "label": "float", "id": "int"})
    assert [bytes(one["image"]) for one in found] == [_jpeg(n) for n in range(40)]
    assert [float(one["label"]) for one in found] == [n * 3 - 2 for n in range(40)]
    assert [int(one["id"]) for one in found] == list(range(40))


def test_parquet_has_typed_columns() -> None:
    """Images are bytes, numbers are integers, texts are strings, and missing objects are nulls."""
    samples = _samples(20, ("jpg", _jpeg), ("cls", _label), ("txt", lambda n: f"Zeile {n} ü".encode()))
    del samples[3].parts[2]
    table = pq.read_table(io.BytesIO(_written("parquet", samples)))
    assert [str(field.type) for field in table.schema] == ["string", "binary", "int64", "string"]
    assert table.column("__key__").to_pylist() == [one.key for one in samples]
    assert table.column("jpg").to_pylist() == [_jpeg(n) for n in range(20)]
    assert table.column("cls").to_pylist() == [n * 3 - 2 for n in range(20)]
    assert table.column("txt").to_pylist() == [None if n == 3 else f"Zeile {n} ü" for n in range(20)]


@pytest.mark.parametrize("count", [1, 2, 100, 5000])
def test_lmdb_reads_what_was_written(count: int, tmp_path: Path) -> None:
    """The library finds every entry, in leaves and in pages of their own, through one level of branches or several."""
    several = _samples(count, ("jpg", lambda n: bytes([n % 256]) * (n * 7 % 5000)), ("cls", _label))
    single = [PackedSample("k" * 300 + one.key, one.parts[:1]) for one in several]
    for samples in (several, single):
        (tmp_path / "data.mdb").write_bytes(_written("lmdb", samples))
        with lmdb.open(str(tmp_path / "data.mdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as look:
            there = dict(look.cursor())
            assert env.stat()["entries"] == len(there)
            if samples is single:
                assert there == {one.key.encode(): one.parts[0].data for one in single}
                assert all(look.get(one.key.encode()) == one.parts[0].data for one in single)
                continue
            assert there.pop(b"num-samples") == b"%d" % count
            for n, one in enumerate(samples):
                assert there.pop(b"key-%09d" % n) == one.key.encode()
                assert there.pop(b"cls-%09d" % n) == _label(n)
                assert there.pop(b"jpg-%09d" % n) == one.parts[0].data
                assert look.get(b"jpg-%09d" % n) == one.parts[0].data
            assert not there


def test_mds_fits_its_index() -> None:
    """Shards repeat the columns of index.json; text, JSON and numbers have streaming's own encodings."""
    samples = _samples(
        5, ("png", _jpeg), ("cls2", _label), ("txt", lambda n: b"t%d" % n), ("json", lambda n: b"[%d]" % n)
    )
    writer, fields = writer_of("mds"), _fields(samples)
    data = _written("mds", samples)
    index = MdsFormat().index(memoryview(data), "shard")
    assert dict(zip(index.fields, index.encodings, strict=True)) == {
        "__key__": "text",
        "cls2": "int64",
        "json": "json",
        "png": "image",
        "txt": "text",
    }
    assert not writer.sidecars([], [], fields)["index.json"].count(b"basename")
    del samples[1].parts[0]
    with pytest.raises(Unsupported, match="without png"):
        _written("mds", samples)


def test_tar_takes_any_name() -> None:
    """Long, foreign and dotted names are read back; dots in the middle do not cut a sample in two."""
    keys = ["a", "d" * 90 + "/" + "f" * 90, "ordner/bücher", "x/a.b", "x/a.c", "x/" + "ü" * 200]
    samples = [
        PackedSample(key, [Part("jpg", f"{key}.JPG", b"1" * n), Part("cls", f"{key}.cls", b"2")])
        for n, key in enumerate(keys)
    ]
    data = _written("tar", samples)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert all((one.mtime, one.uid, one.gid, one.mode) == (0, 0, 0, 0o644) for one in archive)
    escaped = [key.replace("a.", "a%2E") for key in keys]
    assert names == [f"{key}.{end}" for key in escaped for end in ("JPG", "cls")]
    assert len(read(data, "tar", {"cls": "int"})) == len(keys)
    with pytest.raises(BadSample, match="expected a key once"):
        _written("tar", [samples[0], samples[0]])
    for length in range(95, 1010, 3):
        with tarfile.open(fileobj=io.BytesIO(header("n" * length, 0) + bytes(1024))) as archive:
            assert archive.getnames() == ["n" * length]
    info = tarfile.TarInfo.frombuf(header("big.bin", 9 << 33)[-512:], "utf-8", "strict")
    assert info.name == "big.bin"


def test_recordio_splits_at_the_magic() -> None:
    """A payload with the magic at a multiple of 4 is written in parts, and elsewhere the magic stays."""
    magic = MAGIC.to_bytes(4, "little")
    payloads = [magic, b"abcd" + magic + b"xy" + magic, b"a" + magic, magic * 3 + b"z", b""]
    for labelled in (False, True):
        parts = [("jpg", payloads.__getitem__)] + ([("cls", _label)] if labelled else [])
        data = _written("recordio", _samples(len(payloads), *parts))
        found = PartsReader(memoryview(data), "s").records_in_parts()
        joined = [magic.join(data[low:high] for low, high in one)[24 if labelled else 0 :] for one in found]
        assert joined == payloads
        assert [len(one) for one in found] == [2, 2, 1, 4, 1]


def test_numbers_are_whole() -> None:
    """A label that is no whole number of 64 bits is an error that names the object; negative ones are kept."""
    for name in ("tfrecord", "mds", "parquet", "recordio"):
        with pytest.raises(BadSample, match="expected a whole number") as caught:
            _written(name, _samples(1, ("jpg", _jpeg), ("cls", lambda _: b"cat")))
        assert caught.value.object == "dir/s0000.cls"
    least = _samples(1, ("cls", lambda _: b"-9223372036854775808"), ("jpg", _jpeg))
    for name in ("tfrecord", "mds"):
        assert int(read(_written(name, least), name, {"cls": "int"})[0]["cls"]) == -(1 << 63)
    assert varint(300) == b"\xac\x02"


def test_what_a_format_cannot_hold() -> None:
    """RecordIO takes an image and a label, LMDB names of letters; keys that are too long or equal are named."""
    with pytest.raises(Unsupported, match="an image and a class number"):
        _written("recordio", _samples(2, ("jpg", _jpeg), ("txt", _label)))
    with pytest.raises(Unsupported, match="extensions of letters, got mp3"):
        _written("lmdb", _samples(2, ("mp3", _jpeg), ("txt", _label)))
    with pytest.raises(BadSample, match="at most 511 bytes"):
        _written("lmdb", [PackedSample("k" * 512, [Part("jpg", "k.jpg", b"")])])
    with pytest.raises(BadSample, match="a text of UTF-8"):
        _written("parquet", _samples(1, ("txt", lambda _: b"\xff")))


@pytest.mark.parametrize("name", FORMATS)
def test_equal_samples_give_equal_bytes(name: str) -> None:
    """A writer has no clock, no names of users and no order of its own."""
    assert _written(name, IMAGES) == _written(name, [PackedSample(one.key, list(one.parts)) for one in IMAGES])
    sizes = np.array([len(part.data) for one in IMAGES for part in one.parts])
    framed = int(writer_of(name).framed_bytes(sizes).sum())
    assert 0.9 < framed / len(_written(name, IMAGES)) < 1.1
