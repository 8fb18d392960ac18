"""Brotli and Snappy: what was packed comes out, once, whole, and never more than there is room for."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import brotli
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadShard, ResourceExhausted, Unsupported
from feedd.tables import compression
from feedd.tables.memory import LEAST_BYTES
from feedd.tables.registry import get
from tests.fakes.made import made_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

RAW = bytes(range(256)) * 5000 + b"end"
HUGE = b"\xff\xff\xff\xff\x0f"  # Snappy's way to say 4 GiB less one byte


def _snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


PACK: dict[str, Callable[[bytes], bytes]] = {"br": brotli.compress, "snappy": _snappy}
FORM = {"br": "unbrotli", "snappy": "unsnappy"}

kinds = pytest.mark.parametrize("kind", PACK)


def unpack(kind: str, data: bytes, limit_bytes: int = 64 << 20) -> bytes:
    """Return what is made of it."""
    form, made = made_of(FORM[kind], f"a.tar.{kind}", data, limit_bytes)
    assert form == "tar"
    return made


@kinds
@pytest.mark.parametrize("size", [0, 1, 1000, len(RAW)])
def test_what_was_packed_comes_out(kind: str, size: int) -> None:
    """Of any size."""
    assert unpack(kind, PACK[kind](RAW[:size])) == RAW[:size]


@kinds
def test_a_cut_anywhere_is_bad(kind: str) -> None:
    """An object that is missing its end is refused wherever it was cut."""
    packed = PACK[kind](RAW[:2000] + RAW[:700:3])
    for cut in range(len(packed)):
        with pytest.raises(BadShard, match="expected"):
            unpack(kind, packed[:cut])


@kinds
def test_what_follows_the_end_is_bad(kind: str) -> None:
    """One stream and no more, also where what follows begins in another piece."""
    for raw in (b"data", RAW):
        for junk in (b"junk", bytes(300_000), PACK[kind](b"x")):
            with pytest.raises(BadShard):
                unpack(kind, PACK[kind](raw) + junk)


def test_what_follows_at_the_border_of_a_piece_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brotli's library is given pieces: a stream that ends with one is no end of the object."""
    packed = brotli.compress(RAW)
    monkeypatch.setattr(compression, "_IN_BYTES", len(packed))
    assert unpack("br", packed) == RAW
    with pytest.raises(BadShard, match="no bytes after"):
        unpack("br", packed + b"\x06")


@kinds
def test_a_bomb_ends_at_the_limit(kind: str) -> None:
    """However much would come out, no more than the limit is written, and it is the shard's fault."""
    packed = PACK[kind](bytes(30 << 20))
    with pytest.raises(BadShard, match="at most 1MiB"):
        unpack(kind, packed, 1 << 20)
    assert unpack(kind, packed, 30 << 20) == bytes(30 << 20)


@pytest.mark.parametrize("data", [HUGE, HUGE + bytes(1000), b"\xff\xff\xff\xff\xff\xff\x01", b"\x80"])
def test_what_a_block_says_of_its_size_is_not_believed(data: bytes) -> None:
    """Snappy makes at most 64 bytes of three: nothing is allocated for a block that says more."""
    with pytest.raises(BadShard):
        unpack("snappy", data, 1 << 40)


def test_a_block_needs_memory_beside_the_shard() -> None:
    """It is unpacked as a whole: where there is no room for that, it is refused before."""
    packed = _snappy(bytes(LEAST_BYTES + 1))
    written: list[bytes] = []

    class Small:
        """A place with room for as much, and little memory beside it."""

        at = 0
        limit_bytes = extra_bytes = LEAST_BYTES

        def write(self, data: Buffer) -> None:
            written.append(bytes(data))

    class Wide(Small):
        limit_bytes = 1 << 40

    class Held:
        """All of it."""

        size_bytes, spans, data = len(packed), (), memoryview(packed)

        def holds(self, wanted: object) -> bool:
            return wanted is not None

    with pytest.raises(ResourceExhausted, match="unpacked block"):
        get("unsnappy").make(Held(), "s3://b/a.tar.snappy", "", Wide())
    with pytest.raises(BadShard, match="at most 256MiB"):
        get("unsnappy").make(Held(), "s3://b/a.tar.snappy", "", Small())
    assert not written


def test_snappys_frames_and_hadoops_blocks_are_other_formats() -> None:
    """They begin with a name of their own, or with a length that begins with a zero; the hint says what to do."""
    block = _snappy(RAW)
    hadoop = len(RAW).to_bytes(4) + len(block).to_bytes(4) + block
    for data, name in ((bytes(cramjam.snappy.compress(RAW)), "frames"), (hadoop, "Hadoop")):
        with pytest.raises(BadShard, match=name) as caught:
            unpack("snappy", data)
        assert "zstd" in caught.value.hint
    assert unpack("snappy", _snappy(b"")) == b""


def test_the_least_that_a_block_may_be_is_what_bounds_it() -> None:
    """Nineteen bytes hold 405 at most: the error says so, not what there is room for."""
    claims_1_mib = b"\x80\x80\x40" + bytes(16)
    with pytest.raises(BadShard, match="at most 405B in 19B of Snappy, got 1MiB"):
        unpack("snappy", claims_1_mib)


@kinds
def test_the_library_may_be_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, {"br": "brotli", "snappy": "cramjam"}[kind], None)
    with pytest.raises(Unsupported, match=r"feedd\[compressed\]"):
        unpack(kind, PACK[kind](b"a"))


def test_an_old_brotli_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 1.2 it has no limit to what comes out of a piece."""
    monkeypatch.setattr(brotli, "Decompressor", object)
    with pytest.raises(Unsupported, match=r"1\.2"):
        unpack("br", brotli.compress(b"a"))


@kinds
@given(data=st.binary(max_size=300))
def test_any_bytes_have_an_answer(kind: str, data: bytes) -> None:
    """What comes out, or an error of ours."""
    with suppress(BadShard):
        unpack(kind, data, 1 << 20)
