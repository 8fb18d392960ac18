"""Compressed objects: what was packed comes out, whole; everything else is BadShard."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.csv
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.conversion import Conversion, text_of
from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as formats
from feedd.formats.suffixes import BUNZIP2, EXTENSION_CONVERTERS, GUNZIP, UNXZ, UNZSTD
from feedd.tables import registry
from feedd.tables.files import MappedObject
from feedd.values import ByteRange
from tests.budget import budget
from tests.fakes.made import made_of

if TYPE_CHECKING:
    from collections.abc import Callable

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used

RAW = bytes(range(256)) * 5000 + b"end"


@dataclass(frozen=True)
class Kind:
    """A compression, its form, and a name it goes by."""

    conversion: str
    name: str
    pack: Callable[[bytes], bytes]

    def unpack(self, data: bytes, limit_bytes: int = 64 << 20) -> bytes:
        """Return what is made of it."""
        return made_of(self.conversion, self.name, data, limit_bytes)[1]


def _streaming_zstd(data: bytes) -> bytes:
    """A frame that tells neither its length nor a checksum."""
    packer = zstandard.ZstdCompressor(level=1, write_content_size=False, write_checksum=False).compressobj()
    return packer.compress(data) + packer.flush()


KINDS = {
    "gzip": Kind(GUNZIP, "a.tar.gz", gzip.compress),
    "gzip, stored": Kind(GUNZIP, "a.tar.gz", lambda data: gzip.compress(data, 0)),
    "zstd": Kind(UNZSTD, "a.tar.zst", zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd, streamed": Kind(UNZSTD, "a.tar.zst", _streaming_zstd),
    "bzip2": Kind(BUNZIP2, "a.tar.bz2", bz2.compress),
    "xz": Kind(UNXZ, "a.tar.xz", lzma.compress),
}


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.slow] * (kind == "bzip2")) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each compression."""
    return KINDS[request.param]


@pytest.mark.parametrize("size", [0, 1, 1000, len(RAW)])
def test_what_was_packed_comes_out(kind: Kind, size: int) -> None:
    """One stream, or several after one another, of any size."""
    raw = RAW[:size]
    assert kind.unpack(kind.pack(raw)) == raw
    assert kind.unpack(kind.pack(raw) + kind.pack(b"") + kind.pack(RAW[size:])) == RAW


def test_a_cut_anywhere_is_bad(kind: Kind) -> None:
    """An object that is missing its end is refused wherever it was cut, but at the end of a stream."""
    first, packed = kind.pack(b"first"), kind.pack(b"first") + kind.pack(RAW[:2000])
    for cut in range(len(packed)):
        if cut == len(first):
            assert kind.unpack(packed[:cut]) == b"first"
        else:
            with pytest.raises(BadShard, match="expected"):
                kind.unpack(packed[:cut])


def test_what_follows_the_end_is_bad(kind: Kind) -> None:
    """Bytes that are no stream are refused, also after one."""
    for junk in (b"junk that is no stream", b"\0\0\0x", kind.pack(RAW)[:3]):
        with pytest.raises(BadShard):
            kind.unpack(kind.pack(b"data") + junk)
        with pytest.raises(BadShard):
            kind.unpack(junk)


def test_padding_is_passed_over() -> None:
    """Zeros after gzip's last stream, in fours after xz's, and zstd's skippable frames hold nothing."""
    assert KINDS["gzip"].unpack(gzip.compress(b"a") + bytes(200_001) + gzip.compress(b"b") + bytes(3)) == b"ab"
    assert KINDS["xz"].unpack(lzma.compress(b"a") + bytes(8) + lzma.compress(b"b")) == b"ab"
    with pytest.raises(BadShard, match="multiple of 4"):
        KINDS["xz"].unpack(lzma.compress(b"a") + bytes(7))
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert KINDS["zstd"].unpack(skipped + zstandard.compress(b"a") + skipped) == b"a"
    with pytest.raises(BadShard, match="skippable"):
        KINDS["zstd"].unpack(zstandard.compress(b"a") + skipped[:-1])


@pytest.mark.slow
def test_a_bomb_ends_at_the_limit(kind: Kind) -> None:
    """However much would come out, no more than the limit is written, and it is the shard's fault."""
    packed = kind.pack(bytes(30 << 20))
    with pytest.raises(BadShard, match="at most 1MiB"):
        kind.unpack(packed, 1 << 20)
    assert kind.unpack(packed, 30 << 20) == bytes(30 << 20)


def test_dictionaries_are_refused() -> None:
    """A frame that needs a dictionary nobody has is no shard."""
    words = zstandard.ZstdCompressionDict(RAW[:5000], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    trained = zstandard.train_dictionary(2000, [RAW[n : n + 900] for n in range(0, 90_000, 700)])
    with pytest.raises(BadShard):
        KINDS["zstd"].unpack(zstandard.ZstdCompressor(dict_data=trained).compress(RAW))
    with pytest.raises(BadShard):
        KINDS["zstd"].unpack(zstandard.ZstdCompressor(dict_data=words).compress(RAW[100:4000]))


@pytest.mark.parametrize("library", ["isal", "zstandard"])
@pytest.mark.slow
def test_libraries_may_be_missing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without isal the standard library unpacks; without zstandard the error names the extra."""
    monkeypatch.setitem(sys.modules, library, None)
    if library == "isal":
        packed = gzip.compress(RAW) + bytes(5) + gzip.compress(bytes(3 << 20))
        assert KINDS["gzip"].unpack(packed) == RAW + bytes(3 << 20)
        test_a_cut_anywhere_is_bad(KINDS["gzip"])
        test_what_follows_the_end_is_bad(KINDS["gzip"])
        test_a_bomb_ends_at_the_limit(KINDS["gzip"])
        return
    with pytest.raises(Unsupported, match=r"feedd\[compressed\]"):
        KINDS["zstd"].unpack(zstandard.compress(b"a"))


def test_the_name_tells_the_format() -> None:
    """What is inside is what the name without its ending says."""
    for name, form, expected in (
        ("a.tgz", GUNZIP, "tar"),
        ("a.tfrecord-00000-of-00002.gz", GUNZIP, "tfrecord"),
        ("a.jsonl.gz", GUNZIP, "jsonl"),
        ("shard.00000.mds.gz", GUNZIP, "mds"),
        ("A.TXT.GZ", GUNZIP, "text"),
    ):
        assert text_of(registry.conversion_for(f"s3://b.gz/{name}")) == form
        assert made_of(form, name, gzip.compress(b"x"))[0] == expected
    with pytest.raises(Unsupported, match="expected a converter of"):
        registry.get("unrar")


def test_a_number_behind_the_extension_changes_nothing() -> None:
    """As Spark's and TensorFlow's tools name the files of one data set: for every ending, packed or not."""
    part = "-00000-of-00010"
    for extension, form in EXTENSION_CONVERTERS.items():
        assert text_of(registry.conversion_for(f"s3://b/part{extension}{part}")) == form
        for name in (f"a{extension}{part}.gz", f"A{extension}.gz{part}"):
            assert text_of(registry.conversion_for(f"s3://b/{name}")) == f"{GUNZIP}+{form}"
    for name, extensions in formats.extensions().items():
        for extension in extensions:
            if extension.startswith("."):
                assert formats.format_for(f"s3://b/a{extension}{part}") == name
                assert formats.format_for(f"s3://b/a{extension}{part}.gz") == name
    assert text_of(registry.conversion_for("s3://b/a.tgz-1-of-2")) == GUNZIP
    assert text_of(registry.conversion_for("s3://b/a.parquet-1-of-")) == ""


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_tables_are_made_in_two_steps(pack: Callable[[bytes], bytes]) -> None:
    """What is packed and needs a form unpacked too gives the table that the unpacked object gives."""
    raw = b"a,b\n1,x\n2,y\n"
    form = text_of(registry.conversion_for("s3://b/t.csv.gz" if pack is gzip.compress else "s3://b/t.csv.zst"))
    assert registry.is_columnar(Conversion.parse(form))
    packed = pack(raw)
    assert made_of(form, "T.csv.gz", packed) == made_of("csv", "t.csv", raw)
    with pytest.raises(BadShard):
        made_of(form, "t.csv.gz", packed[:-2])
    with pytest.raises(BadShard, match="at most"):
        made_of(form, "t.csv.gz", pack(b"a\n" + b"1\n" * 100_000), 10_000)
    with pytest.raises(Unsupported):
        registry.get("csv+gunzip")


def test_everything_is_wanted_once(kind: Kind) -> None:
    """A compressed object is needed whole."""
    form = registry.get(kind.conversion)
    assert form.wanted(MappedObject(-1, 10), "") == (ByteRange(0, 10),)
    assert form.wanted(MappedObject(-1, 10, [ByteRange(0, 10)]), "") == ()
    assert form.wanted(MappedObject(-1, 0), "") == ()


@settings(max_examples=budget(150))
@given(
    name=st.sampled_from(sorted(KINDS)),
    pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    cut=st.floats(0, 1),
)
def test_damage_is_bad_or_harmless(name: str, pieces: list[bytes], flips: list[tuple[float, int]], cut: float) -> None:
    """Mutated bytes give a shard of bounded size or BadShard; undamaged ones give what was packed."""
    kind = KINDS[name]
    packed = bytearray(b"".join(map(kind.pack, pieces)))
    for place, value in flips:
        packed[int(place * len(packed))] = value
    damaged = bytes(packed[: round(cut * len(packed))])
    if damaged == b"".join(map(kind.pack, pieces)):
        assert kind.unpack(damaged) == b"".join(pieces)
        return
    try:
        assert len(kind.unpack(damaged, 1 << 20)) <= 1 << 20
    except BadShard:
        return


@settings(max_examples=budget(150))
@given(name=st.sampled_from(sorted(KINDS)), data=st.binary(max_size=2000), whole=st.booleans())
def test_noise_is_bad(name: str, data: bytes, whole: bool) -> None:
    """Arbitrary bytes, also after a right beginning, are BadShard."""
    kind = KINDS[name]
    start = b"" if whole else kind.pack(b"")[:9]
    try:
        kind.unpack(start + data, 1 << 20)
    except BadShard:
        return
    assert not data.strip(b"\0") or data[:2] in {b"\x1f\x8b", b"BZ", b"\xfd7", b"(\xb5"} or not whole
