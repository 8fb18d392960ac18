"""What is sent of each object."""

from __future__ import annotations

import gzip
import zlib

import pytest

from feedd.channels.channel import Channel, Compression, RecordWrapper
from feedd.errors import BadShard
from feedd.pipes import record_framing
from feedd.pipes.record_framing import RECORD_BYTES_MAX, ObjectFraming
from tests.fakes.recordio import part

GZIP = Channel("train", compression=Compression.GZIP)
WRAPPED = Channel("train", record_wrapper=RecordWrapper.RECORDIO)


def framed(channel: Channel, data: bytes, piece_bytes: int = 1 << 30) -> bytes:
    """Return all bytes of an object that arrives in pieces."""
    framing = ObjectFraming(channel, "s3://b/k", len(data))
    found = bytearray(framing.begin())
    for at in range(0, len(data), piece_bytes):
        piece = memoryview(data)[at : at + piece_bytes]
        for one in [piece] if framing.is_plain else framing.unpack(piece):
            assert len(one) <= 1 << 20 or framing.is_plain
            found += one
    return bytes(found + framing.end())


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 1000])
def test_a_record_is_padded(size: int) -> None:
    """A header with the size, the object, and zeros up to a multiple of four."""
    data = b"\xff" * size
    assert framed(WRAPPED, data) == part(data)
    assert framed(Channel("train"), data) == data


@pytest.mark.parametrize("library", ["isal", "zlib"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 30])
def test_gzip_in_any_pieces(monkeypatch: pytest.MonkeyPatch, library: str, piece_bytes: int) -> None:
    """Members follow one another, zeros may pad them, and a small input may give much output."""
    if library == "zlib":
        monkeypatch.setattr(record_framing, "_library", lambda: ((lambda: zlib.decompressobj(31)), (zlib.error,)))
    members = [b"first", b"", b"z" * 3_500_000, b"last"]
    packed = b"".join(gzip.compress(member, mtime=0) + bytes(3) for member in members)
    assert framed(GZIP, packed, piece_bytes) == b"".join(members)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got no bytes"),
        (b"\x1f\x8b\x08", "got the end of the object"),
        (gzip.compress(b"x" * 100, mtime=0)[:-1], "got the end of the object"),
        (gzip.compress(b"x" * 100, mtime=0) + b"rest of the object", "expected whole gzip data"),
        (b"no gzip at all", "expected whole gzip data"),
        (gzip.compress(b"x" * 100, mtime=0)[:-8] + bytes(8), "expected whole gzip data"),
    ],
)
def test_what_is_not_gzip(data: bytes, message: str) -> None:
    """The error names the object."""
    with pytest.raises(BadShard) as caught:
        framed(GZIP, data)
    assert message in str(caught.value)
    assert caught.value.object == "s3://b/k"


def test_the_largest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """RecordIO has 29 bits for the size, of a compressed object too."""
    ObjectFraming(WRAPPED, "s3://b/k", RECORD_BYTES_MAX).begin()
    with pytest.raises(BadShard, match=f"expected at most {RECORD_BYTES_MAX} bytes for a RecordIO record"):
        ObjectFraming(WRAPPED, "s3://b/k", RECORD_BYTES_MAX + 1).begin()
    monkeypatch.setattr(record_framing, "RECORD_BYTES_MAX", 1_000_000)
    both = Channel("train", compression=Compression.GZIP, record_wrapper=RecordWrapper.RECORDIO)
    assert framed(both, gzip.compress(bytes(1_000_000))) == part(bytes(1_000_000))
    framing = ObjectFraming(both, "s3://b/k", 100)
    with pytest.raises(BadShard):
        all(framing.unpack(memoryview(gzip.compress(bytes(12_000_000)))))
    assert len(framing._unpacked) < 3_000_000
