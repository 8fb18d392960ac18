"""What a URL names in the place of a format, and what first bytes tell where no name does."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from typing import TYPE_CHECKING

import brotli
import cramjam
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from feedd.conversion import text_of
from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as formats
from feedd.formats.refused import say_packed
from feedd.formats.suffixes import EXTENSION_CONVERTERS, endings
from feedd.tables import registry
from feedd.tables.registry import DETECT_BYTES, conversion_by_head, is_unsaid
from tests.fakes.made import made_of
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from collections.abc import Callable

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zlib": zlib.compress,
    "br": brotli.compress,
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
UNPACK = {
    "gz": "gunzip",
    "zst": "unzstd",
    "bz2": "bunzip2",
    "xz": "unxz",
    "zlib": "inflate",
    "br": "unbrotli",
    "snappy": "unsnappy",
}
UNMARKED = ("br", "snappy")
"""They begin with no mark: nothing but a name tells what they are."""
NO_TEXT = [one for one in PACKINGS if one not in (*UNMARKED, "zlib")]
"""Those whose first bytes no text begins with."""
TABLE = pa.table({"a": [1, 2, 3]})


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def _arrow(kind: Callable[..., ipc.RecordBatchStreamWriter]) -> bytes:
    sink = io.BytesIO()
    with kind(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def _hdf5() -> bytes:
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file["a"] = np.arange(3)
    return sink.getvalue()


def _npz(save: Callable[..., None] = np.savez) -> bytes:
    sink = io.BytesIO()
    save(sink, a=np.arange(3))
    return sink.getvalue()


HEADS = {
    "parquet": _parquet(),
    "arrow": _arrow(ipc.new_file),
    "arrow stream": _arrow(ipc.new_stream),
    "hdf5": _hdf5(),
    "npz": _npz(),
    "npz deflated": _npz(np.savez_compressed),
}


@pytest.mark.parametrize("what", HEADS)
def test_first_bytes_tell_a_form(what: str) -> None:
    """What each library writes begins so that the form is known, and it can be made by that."""
    data, form = HEADS[what], what.partition(" ")[0]
    assert text_of(conversion_by_head(data[:DETECT_BYTES], len(data))) == form
    assert made_of(form, "part-00000", data)[0] == "table"


@pytest.mark.parametrize("ending", PACKINGS)
def test_first_bytes_tell_a_compression(ending: str) -> None:
    """But for zlib's two bytes, which may begin anything, and for those that begin with no mark."""
    data = PACKINGS[ending](tar_bytes([("a", {"txt": b"x"})]))
    form = text_of(conversion_by_head(data[:DETECT_BYTES], len(data)))
    assert form == (UNPACK[ending] if ending in NO_TEXT else "")
    if form:
        assert made_of(form, "part-00000", data)[0] == formats.AUTO


def test_what_is_no_form_is_left_alone() -> None:
    """Shards that are read in place, other zips, and noise."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", b"x")
    for data in (
        tar_bytes([("a", {"txt": b"x"})]),
        tfrecord(example(a=[1])),
        buffer.getvalue(),
        b"",
        b"PK\3\4",
        b"a,b",
    ):
        assert text_of(conversion_by_head(data[:DETECT_BYTES], len(data))) == ""
    assert text_of(conversion_by_head(b"\xff\xff\xff\xff\x07\0\0\0", 1000)) == ""
    assert text_of(conversion_by_head(b"\xff\xff\xff\xff\x10\0\0\0", 16)) == ""


@given(st.binary(max_size=600), st.integers(0, 1 << 40))
def test_any_head_has_an_answer(head: bytes, size_bytes: int) -> None:
    """One of the forms there are, or none."""
    assert text_of(conversion_by_head(head, size_bytes)) in {"", *registry.names()}


def test_only_names_that_say_nothing_are_looked_into() -> None:
    """Not those of formats and forms, and not those that are refused."""
    for name in ("part-00000", "a.xyz", "data", "a.json", "x.c000"):
        assert is_unsaid(f"d/{name}"), name
    for name in ("a.tar", "a.csv", "a.csv.gz", "chunk-0-0.bin", "a.ckpt", "a.jsonl", "a.lz4", "b.gz"):
        assert not is_unsaid(f"d/{name}"), name


@pytest.mark.parametrize("form", sorted(set(EXTENSION_CONVERTERS.values())))
def test_every_form_can_be_named(form: str) -> None:
    """As formats can; and behind it how it is compressed, which the object's own ending may say as well."""
    assert text_of(registry.conversion_named(form)) == form
    registry.check_named(form)
    for ending, unpack in UNPACK.items():
        assert text_of(registry.conversion_named(f"{form}.{ending}")) == f"{unpack}+{form}"
        assert text_of(registry.conversion_of(form, f"s3://b/x.{ending}")) == f"{unpack}+{form}"
        assert text_of(registry.conversion_of(form, f"s3://b/x.{ending}-00000-of-00002")) == f"{unpack}+{form}"
    assert text_of(registry.conversion_of(form, "s3://b/x.tar")) == form


def test_every_format_can_be_named_compressed() -> None:
    """What is unpacked is then read as that, whatever the object is called."""
    for name in formats.extensions():
        for ending, unpack in UNPACK.items():
            assert text_of(registry.conversion_named(f"{name}.{ending}")) == f"{unpack}:{name}"
            registry.check_named(f"{name}.{ending}")
        assert text_of(registry.conversion_named(name)) == ""
    assert text_of(registry.conversion_named("tgz")) == "gunzip:tar"
    for ending, pack in PACKINGS.items():
        raw = tfrecord(example(a=[1]))
        assert made_of(f"{UNPACK[ending]}:tfrecord", "a.xyz", pack(raw)) == ("tfrecord", raw)


def test_a_compression_can_be_named_alone() -> None:
    """What is in it is what the object's name says, or its first bytes."""
    for url, form in (("s3://b/a.tar", "gunzip"), ("s3://b/a.csv", "gunzip+csv"), ("s3://b/part-0", "gunzip")):
        assert text_of(registry.conversion_of("gz", url)) == form
    raw = tar_bytes([("a", {"txt": b"x"})])
    assert made_of("gunzip", "a.tar", gzip.compress(raw)) == ("tar", raw)


def test_a_named_format_goes_before_the_name() -> None:
    """A table may be read as lines; what is compressed by its ending is unpacked all the same."""
    assert text_of(registry.conversion_of("text", "s3://b/a.csv")) == ""
    assert text_of(registry.conversion_of("text", "s3://b/a.csv.gz")) == "gunzip"
    assert text_of(registry.conversion_of("", "s3://b/a.csv.gz")) == "gunzip+csv"
    assert text_of(registry.conversion_of("litdata-arrow", "s3://b/a.bin")) == "litdata-arrow"


def test_what_nobody_has_is_refused_with_what_there_is() -> None:
    """Forms are named among the formats."""
    for name in ("beton", "beton.gz", "csv.lz4", "table.gzz"):
        with pytest.raises(Unsupported, match=r"csv.*parquet.*tfrecord") as caught:
            registry.check_named(name)
        assert "tfrecord.gz" in caught.value.hint


@pytest.mark.parametrize("ending", [one for one in PACKINGS if one not in UNMARKED])
def test_errors_say_how_a_compressed_shard_is_read(ending: str) -> None:
    """The hint is the URL to write, and that URL's name is one that is known."""
    error = BadShard("expected a record")
    say_packed(error, PACKINGS[ending](b"some bytes" * 9)[:8], "tfrecord")
    assert f"tfrecord.{ending}+s3://" in error.hint
    registry.check_named(f"tfrecord.{ending}")
    plain = BadShard("expected a record", hint="none")
    say_packed(plain, b"\0\1\2\3\4\5\6\7", "tfrecord")
    assert plain.hint == "none"


@pytest.mark.parametrize("ending", NO_TEXT)
@pytest.mark.parametrize("name", ["text", "jsonl"])
def test_compressed_bytes_are_no_lines(name: str, ending: str) -> None:
    """They are refused as what they are, not delivered as lines of noise."""
    data = PACKINGS[ending](b'{"a": 1}\n' * 100)
    with pytest.raises(BadShard) as caught:
        formats.get(name).index(memoryview(data), "s3://b/a")
    assert f"{name}.{ending}+s3://" in caught.value.hint
    assert formats.get(name).index(memoryview(b"x^ is text"), "s3://b/a").sample_count == 1


def test_text_in_breton_is_not_unpacked() -> None:
    """Text may end in the name of its language; where the name inside says something, or somebody, it is unpacked."""
    assert text_of(registry.conversion_of("text", "s3://b/wiki.br")) == ""
    for inside in ("wiki.txt", "0.mds", "a.tar", "a.lz4"):
        assert text_of(registry.conversion_of("text", f"s3://b/{inside}.br")) == "unbrotli"
    assert text_of(registry.conversion_of("text.br", "s3://b/wiki.br")) == "unbrotli:text"
    assert text_of(registry.conversion_of("jsonl", "s3://b/wiki.br")) == "unbrotli"
    assert text_of(registry.conversion_of("text", "s3://b/wiki.snappy")) == "unsnappy"
    assert text_of(registry.conversion_of("text", "s3://b/wiki.gz")) == "gunzip"


def test_endings_are_those_there_are() -> None:
    """Each way of compressing has a name here."""
    assert set(UNPACK.values()) == set(endings())
