"""The layout of an entry on disk: one file of a header in whole pages, then the object's bytes. Pure.

``<directory>/v2/<2 hex>/<64 hex>.shard``; the name is the SHA-256 of the object's identity. During the fill the file is
called ``.tmp-<32 hex>`` in the same folder. The header is written last.

Header, little-endian: magic[8], version u32, crc32c u32 (of the whole header with this field zero), data_at u64,
data_bytes u64. Then block_bytes u32, boot[16], run[16], root_bytes u16, key_bytes u16, etag_bytes u16.

Then root, key and etag as UTF-8 (of a converted shard: etag, a zero byte, conversion). Then one crc32c u32 per block of
data, then zeros up to data_at. The object's size alone decides the number of blocks, and with it data_at.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from awscrt.checksums import crc32c

from feedd.conversion import Conversion
from feedd.units import MIB
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES: Final = 4096
FORMAT_VERSION: Final = 2
FORMAT_FOLDER: Final = f"v{FORMAT_VERSION}"

_MAGIC = b"feeddshd"
_FIXED = struct.Struct("<8sIIQQI16s16sHHH")
_CRC_AT = 12
_SUM_BYTES = 4
CONVERSIONS_VERSION: Final = "3"
"""Version of all converters' output. Bump it when any output changes; older cached output is then ignored."""

_CONVERSION_MARK = "\0"  # no store's etag contains this character
_BLOCKS_MAX = 1 << 18  # 1 MiB of checksums; an object above 256 GiB gets larger blocks
# Three texts of at most 65,535 bytes each, and the checksums.
_HEADER_BYTES_MAX = 64 * PAGE_BYTES + _SUM_BYTES * _BLOCKS_MAX
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.shard")
_TEMP_NAME = re.compile(r"\.tmp-[0-9a-f]{32}")
_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a header.

    Attributes:
        ref: the object.
        data_at: offset of the object's first byte in the file.
        boot: 16 bytes that name the kernel's boot during which the entry was written.
        run: 16 bytes that name the cache's run that wrote the entry.
        sums: CRC32C of each block, as consecutive little-endian u32.
    """

    ref: ObjectRef
    data_at: int
    boot: bytes
    run: bytes
    sums: bytes

    @property
    def file_bytes(self) -> int:
        """Length that the file must have."""
        return self.data_at + self.ref.size_bytes


def _texts(ref: ObjectRef) -> tuple[bytes, bytes, bytes]:
    # surrogatepass: names of local files need not be UTF-8 and must survive the round trip
    root, key, etag = (text.encode("utf-8", "surrogatepass") for text in (ref.root, ref.key, version_of(ref)))
    return root, key, etag


def version_of(ref: ObjectRef) -> str:
    """Return the part of the identity besides key and size: the etag, and for a converted shard the conversion."""
    if ref.conversion is None:
        return ref.etag
    return f"{ref.etag}{_CONVERSION_MARK}{ref.conversion.text}{_CONVERSION_MARK}{CONVERSIONS_VERSION}"


def ref_of(root: str, key: str, size_bytes: int, version: str) -> ObjectRef:
    """Return the ref whose version text ``version_of`` gave.

    For output of another converter version, the returned ref matches no request.
    """
    etag, *made = version.split(_CONVERSION_MARK)
    text = (
        "" if not made else made[0] if made[1:] == [CONVERSIONS_VERSION] else " ".join(("by another version:", *made))
    )
    return ObjectRef(root, key, size_bytes, etag, Conversion.parse(text))


def whole_pages(size_bytes: int) -> int:
    """Round a size up to whole pages, as the file takes them on disk."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def block_bytes(size_bytes: int) -> int:
    """Return the size of a checksummed block: 1 MiB, or more for objects above 256 GiB."""
    size = MIB
    while size_bytes > size * _BLOCKS_MAX:
        size *= 2
    return size


def block_count(size_bytes: int) -> int:
    """Return the number of blocks of an object of this size; the last block may be short."""
    return -(-size_bytes // block_bytes(size_bytes))


def data_at(ref: ObjectRef) -> int:
    """Return the offset of the object's bytes: one page for objects below about 900 MiB, more for larger ones."""
    texts = f"{ref.root}{ref.key}{version_of(ref)}"  # called a million times at a start, so the usual case comes first
    texts_bytes = len(texts) if texts.isascii() else sum(map(len, _texts(ref)))
    return whole_pages(_FIXED.size + texts_bytes + _SUM_BYTES * block_count(ref.size_bytes))


def disk_bytes(ref: ObjectRef) -> int:
    """Return the disk bytes of an entry: header and data in whole pages."""
    return data_at(ref) + whole_pages(ref.size_bytes)


def name_of(ref: ObjectRef) -> str:
    """Return the 64 hexadecimal digits that name the entry."""
    texts = _texts(ref)
    identity = struct.pack("<HHHQ", *map(len, texts), ref.size_bytes) + b"".join(texts)
    return hashlib.sha256(identity).hexdigest()


def file_path(directory: Path, ref: ObjectRef) -> Path:
    """Return the path of the entry's file."""
    name = name_of(ref)
    return directory.joinpath(FORMAT_FOLDER, name[:2], f"{name}.shard")


def temp_path(final: Path) -> Path:
    """Return a fresh temporary name in the same folder as ``final``."""
    return final.with_name(f".tmp-{secrets.token_hex(16)}")


def is_folder_name(name: str) -> bool:
    """Whether a folder has the name pattern of the cache's folders."""
    return _FOLDER_NAME.fullmatch(name) is not None


def is_entry_name(name: str) -> bool:
    """Whether a file has the name pattern of an entry; all others are foreign and left alone."""
    return _ENTRY_NAME.fullmatch(name) is not None


def is_temp_name(name: str) -> bool:
    """Whether a file has the name pattern of an unfinished fill."""
    return _TEMP_NAME.fullmatch(name) is not None


def entry_name(path_name: str) -> str:
    """Return the 64 hexadecimal digits of an entry's file name."""
    return path_name[: -len(".shard")]


def pack_header(ref: ObjectRef, boot: bytes, run: bytes, sums: bytes) -> bytes:
    """Return the header of ``ref``'s entry, ``data_at(ref)`` bytes long."""
    assert len(sums) == _SUM_BYTES * block_count(ref.size_bytes), "one checksum per block"
    texts = _texts(ref)
    start, block = data_at(ref), block_bytes(ref.size_bytes)
    fixed = _FIXED.pack(_MAGIC, FORMAT_VERSION, 0, start, ref.size_bytes, block, boot, run, *map(len, texts))
    page = bytearray((fixed + b"".join(texts) + sums).ljust(start, b"\0"))
    struct.pack_into("<I", page, _CRC_AT, crc32c(page))
    return bytes(page)


def header_bytes(first_page: bytes) -> int | None:
    """Return the header's own length from its first page, or None if the page is no header of this version."""
    if len(first_page) < PAGE_BYTES:
        return None
    magic, version, _, start, *_ = _FIXED.unpack_from(first_page)
    ours = magic == _MAGIC and version == FORMAT_VERSION
    return start if ours and PAGE_BYTES <= start <= _HEADER_BYTES_MAX and start % PAGE_BYTES == 0 else None


def unpack_header(page: bytes) -> Header | None:
    """Return the content of a whole header, or None if it is torn, foreign or of another version."""
    start = header_bytes(page)
    if start is None or start != len(page):
        return None
    _, _, crc, _, size_bytes, block, boot, run, *lengths = _FIXED.unpack_from(page)
    if crc32c(page[:_CRC_AT] + bytes(4) + page[_CRC_AT + 4 :]) != crc or block != block_bytes(size_bytes):
        return None
    texts = []
    at = _FIXED.size
    for length in lengths:
        texts.append(page[at : at + length].decode("utf-8", "surrogatepass"))
        at += length
    root, key, etag = texts
    sums = page[at : at + _SUM_BYTES * block_count(size_bytes)]
    return Header(ref_of(root, key, size_bytes, etag), start, boot, run, sums)
