"""Writes tar files as WebDataset reads them: members of one sample are neighbours and have one key.

Headers are POSIX ustar, with times and owners of 0. A name that is long or not ASCII has a PAX header before its own.

WebDataset cuts a name at the first dot of its last component, and feedd's listing at the last dot. So other dots are
written as ``%2E``: ``a.b.jpg`` and ``a.b.txt`` stay one sample, and ``a.c.jpg`` stays another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import BadSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Piece

_BLOCK: Final = 512
_NAME_BYTES: Final = 100
_OCTAL_MAX: Final = 1 << 33
_HEAD: Final = bytearray(_BLOCK)
_HEAD[100:124] = b"0000644\x000000000\x000000000\x00"  # mode, user, group
_HEAD[136:156] = b"00000000000\x00        "  # time, and spaces in place of the checksum
_HEAD[156:157] = b"0"
_HEAD[257:265] = b"ustar\x0000"
_SUM: Final = sum(_HEAD)
_PADDING: Final = bytes(_BLOCK)
_PAX_NAME: Final = b"PaxHeaders/member"


class TarWriter:
    """``ShardWriter`` of tar."""

    name = "tar"
    extension = "tar"

    def check(self, fields: Fields) -> None:
        """Do nothing: members may have any names."""

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of members with their headers."""
        framed: NDArray[np.int64] = _BLOCK + (sizes + _BLOCK - 1) // _BLOCK * _BLOCK
        return framed

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:  # noqa: ARG002 - the seam's
        """Yield headers, objects and padding, and two empty blocks at the end.

        Raises:
            BadSample: two samples have one key.
        """
        seen: set[str] = set()
        for sample in samples:
            key = tar_key(sample.key)
            if key in seen:
                raise BadSample("expected a key once in a shard, got it twice", object=sample.key, stage="pack")
            seen.add(key)
            for part in sample.parts:
                size = len(part.data)
                yield header(f"{key}{part.name[len(sample.key) :]}", size)
                yield part.data
                yield _PADDING[: -size % _BLOCK]
        yield bytes(2 * _BLOCK)

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:  # noqa: ARG002 - the seam's
        """Return nothing."""
        return {}


def tar_key(key: str) -> str:
    """Return the key of a sample as it is written: without dots in its last component."""
    folder, slash, last = key.rpartition("/")
    return f"{folder}{slash}{last.replace('.', '%2E')}" if "." in last else key


def header(name: str, size_bytes: int) -> bytes:
    """Return the header of a member, with a PAX header before it if its name or its size needs one."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _NAME_BYTES and raw.isascii() and size_bytes < _OCTAL_MAX:
        return _plain(raw, size_bytes, b"0")
    records = _record(b"path", raw) + (_record(b"size", b"%d" % size_bytes) if size_bytes >= _OCTAL_MAX else b"")
    padded = records.ljust(-(-len(records) // _BLOCK) * _BLOCK, b"\0")
    short = raw.decode("utf-8", "replace").encode("ascii", "replace")[-_NAME_BYTES:]
    return _plain(_PAX_NAME, len(records), b"x") + padded + _plain(short, size_bytes % _OCTAL_MAX, b"0")


def _plain(name: bytes, size_bytes: int, kind: bytes) -> bytes:
    octal = b"%011o" % size_bytes
    head = _HEAD.copy()
    head[: len(name)] = name
    head[124:135] = octal
    head[156] = kind[0]
    total = _SUM + sum(name) + sum(octal) + kind[0] - ord("0")
    head[148:156] = b"%06o\x00 " % total
    return bytes(head)


def _record(name: bytes, value: bytes) -> bytes:
    """Return a PAX record, which begins with its own length."""
    rest = b" %s=%s\n" % (name, value)
    size = len(rest) + len(str(len(rest)))
    while len(b"%d%s" % (size, rest)) != size:
        size += 1
    return b"%d%s" % (size, rest)
