"""The on-disk format: identity in the name and in the header, nothing believed that does not check out."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from feedd.cache import entry_layout
from feedd.conversion import Conversion
from feedd.units import MIB
from feedd.values import ObjectRef

BOOT, RUN = bytes(range(16)), bytes(range(16, 32))
REF = ObjectRef("s3://bucket", "train/shard-000.tar", 123_456, "0123abc-7")
KEYS = ["a" * 1024, "new\nline\r\0tab\t" * 70, "\U0001f600" * 256, "ä/ü %2F", "\x01" * 1024, "file\udcff.tar", ""]


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_any_key_fits_one_page(key: str) -> None:
    """Keys of 1,024 bytes, with whatever characters, come back as they were, from a header of one page."""
    ref = ObjectRef("s3://" + "b" * 63, key, 600 << 20, "e" * 64)
    sums = bytes(range(240)) * 10
    page = entry_layout.pack_header(ref, BOOT, RUN, sums)
    assert len(page) == entry_layout.data_at(ref) == entry_layout.PAGE_BYTES
    assert entry_layout.unpack_header(page) == entry_layout.Header(ref, 4096, BOOT, RUN, sums)


@pytest.mark.parametrize("size_bytes", [0, 1, MIB, MIB + 1, 5 << 30, 256 << 30, (256 << 30) + 1, 6 << 40])
def test_header_grows_with_the_object_within_bounds(size_bytes: int) -> None:
    """Every size has a checksum per block; those of an object of 6 TiB take a megabyte at most."""
    ref = ObjectRef("s3://bucket", "k", size_bytes, "e")
    assert entry_layout.block_count(size_bytes) * entry_layout.block_bytes(size_bytes) >= size_bytes
    assert entry_layout.block_bytes(size_bytes) == MIB or size_bytes > 256 << 30
    assert entry_layout.data_at(ref) <= MIB + 4096
    header = entry_layout.pack_header(ref, BOOT, RUN, bytes(4 * entry_layout.block_count(size_bytes)))
    found = entry_layout.unpack_header(header)
    assert found is not None
    assert (found.ref, found.data_at, len(header)) == (ref, entry_layout.data_at(ref), entry_layout.data_at(ref))


def test_path_too_long_for_a_page_takes_another() -> None:
    """A local path of the longest length there is still has a place; data then begins a page later."""
    ref = ObjectRef("file://", "/" + "d/" * 2047, 10, "size-mtime")
    page = entry_layout.pack_header(ref, BOOT, RUN, bytes(4))
    assert len(page) == entry_layout.data_at(ref) == 2 * entry_layout.PAGE_BYTES
    assert entry_layout.header_bytes(page[:4096]) == len(page)
    header = entry_layout.unpack_header(page)
    assert header is not None
    assert header.ref == ref
    assert header.file_bytes == 8192 + 10


def test_what_another_version_made_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made shard comes back as it was; where forms write otherwise by now, it lies under another name."""
    made = ObjectRef("s3://bucket", "a.csv.gz", 1000, "e", Conversion("gunzip+csv", '[["a"]]'))
    path, page = entry_layout.file_path(Path("/c"), made), entry_layout.pack_header(made, BOOT, RUN, bytes(4))
    header = entry_layout.unpack_header(page)
    assert header is not None
    assert header.ref == made
    monkeypatch.setattr(entry_layout, "CONVERSIONS_VERSION", entry_layout.CONVERSIONS_VERSION + "x")
    header = entry_layout.unpack_header(page)
    assert header is None or header.ref != made
    assert entry_layout.file_path(Path("/c"), made) != path


@given(at=st.integers(0, 4095), flip=st.integers(1, 255))
def test_every_damaged_byte_is_noticed(at: int, flip: int) -> None:
    """A header with any one byte changed is none."""
    page = bytearray(entry_layout.pack_header(REF, BOOT, RUN, b"sums"))
    page[at] ^= flip
    assert entry_layout.unpack_header(bytes(page)) is None


@pytest.mark.parametrize("page", [b"", bytes(4095), bytes(4096), b"\xff" * 4096, b"feeddshd" * 512])
def test_other_bytes_are_no_header(page: bytes) -> None:
    """Zeros, a short file, and somebody else's bytes are told apart without an exception."""
    assert entry_layout.unpack_header(page) is None
    assert entry_layout.header_bytes(page) is None


def test_disk_bytes_counts_whole_pages() -> None:
    """Header and data are rounded up separately."""
    sizes = {0: 4096, 1: 8192, 4096: 8192, 4097: 12288}
    assert {size: entry_layout.disk_bytes(ObjectRef("s3://b", "k", size, "e")) for size in sizes} == sizes


texts = st.text(max_size=8)


@given(
    one=st.builds(ObjectRef, texts, texts, st.integers(0, 3), texts),
    two=st.builds(ObjectRef, texts, texts, st.integers(0, 3), texts),
)
def test_names_are_equal_only_for_equal_objects(one: ObjectRef, two: ObjectRef) -> None:
    """No two identities share a file, however their texts run into each other."""
    folder = Path("/cache")
    assert (entry_layout.file_path(folder, one) == entry_layout.file_path(folder, two)) == (one == two)


def test_names_are_recognised_and_foreign_ones_are_not() -> None:
    """Only names the cache makes itself are ever touched."""
    path = entry_layout.file_path(Path("/cache"), REF)
    temp = entry_layout.temp_path(path)
    assert path.parts[:3] == ("/", "cache", "v2")
    assert path.parent.name == path.name[:2]
    assert temp.parent == path.parent
    assert entry_layout.is_entry_name(path.name)
    assert entry_layout.is_temp_name(temp.name)
    assert entry_layout.is_folder_name(path.parent.name)
    for name in ("lock", "notes.txt", ".tmp-", ".tmp-xyz", path.name + "~", "ABCD.shard", temp.name + ".bak"):
        assert not entry_layout.is_entry_name(name)
        assert not entry_layout.is_temp_name(name)
    assert not entry_layout.is_folder_name("lost+found")
