"""The layout of a frozen manifest: the objects of a dataset and their sample counts, as compressed columns. Pure.

| bytes | content |
|---|---|
| 8 | ``feeddmf`` and the version of the layout |
| 4 | length of the head, little-endian |
| head | JSON: see ``Head`` |
| columns | one zstd frame after another, in the order and with the lengths of the head |
| 32 | BLAKE2b over all bytes before |

Numbers lie byte by byte: first the lowest byte of every number, then the next. Zstandard compresses them better so. A
reader checks the digest, and every length against the number of objects, before it takes memory for a column.
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cramjam
import msgspec
import numpy as np

from feedd.dataset.index_file import SAMPLES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MANIFEST_BYTES_MAX: Final = 1 << 30
"""Maximum size of a manifest; one of a million shards takes 15 to 25 MB."""

_MAGIC: Final = b"feeddmf\x01"
_DIGEST_BYTES: Final = 32
_HEAD_BYTES_MAX: Final = 16 << 20
_KEY_BYTES_MAX: Final = 4096  # of one key; S3 allows 1,024
_TAG_BYTES_MAX: Final = 1024
_OBJECTS_PER_BYTE: Final = 16  # keys differ, so no object compresses to less
_LEVEL: Final = 6
_PLAIN: Final = (string.ascii_letters + string.digits + "_/.,=()!~*$'-").encode()
_DOT, _SLASH, _EQUALS = b"./="
_CONTINUATION: Final = 0x80  # the two highest bits of a byte inside of a UTF-8 character


class Notice(msgspec.Struct, frozen=True):
    """Objects that the listing left out; see ``notices.Amount``."""

    kind: str
    count: int
    size_bytes: int
    examples: tuple[str, ...]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a manifest that are no columns.

    Attributes:
        objects: number of objects.
        key_bytes: length of all keys.
        tag_bytes: length of all etags.
        format: the format that the indexed URL named; empty: none.
        packed: some objects are single samples, so that a reader must group all of them into packs.
        names: names that stand for all names of objects of one kind: ``x.tar``. Format and conversion follow from them.
            Empty: the names of the objects must be taken instead.
        formats: formats that sidecars named; the first is the empty text.
        writer: version of feedd.
        left_out: what the listing left out.
        columns: stored bytes of each column, by its name, in their order. A reader skips columns that it does not know.
    """

    objects: int
    key_bytes: int
    tag_bytes: int
    format: str = ""
    packed: bool = False
    names: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("",)
    writer: str = ""
    left_out: tuple[Notice, ...] = ()
    columns: dict[str, int] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The objects of a dataset, in the order of its listing.

    Attributes:
        head: facts about all objects.
        keys: keys below the folder, UTF-8, concatenated.
        key_ends: 0, and the end of each key.
        sizes: int64[objects], bytes.
        tags: etags, as ``packs.packed_tag`` returns them, concatenated.
        tag_ends: 0, and the end of each etag.
        counts: int64[objects], samples; -1: not counted.
        names: uint16[objects], index into ``head.names``.
        formats: uint16[objects], index into ``head.formats``.
    """

    head: Head
    keys: bytes
    key_ends: Sequence[int]
    sizes: NDArray[np.int64]
    tags: bytes
    tag_ends: Sequence[int]
    counts: NDArray[np.int64]
    names: NDArray[np.uint16]
    formats: NDArray[np.uint16]

    @property
    def has_plain_keys(self) -> bool:
        """Whether all keys are ASCII without rare characters, and no part of them begins with a dot.

        Such keys climb in no store (``access.climbs``). Takes some 50 nanoseconds for each key.
        """
        if self.keys.translate(None, _PLAIN):
            return False
        octets = np.frombuffer(self.keys, np.uint8)
        before = octets[np.flatnonzero(octets[1:] == _DOT)]
        starts = octets[_array(self.key_ends)[:-1]]
        return not ((before == _SLASH) | (before == _EQUALS)).any() and not (starts == _DOT).any()


def render(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest; the lengths in its head are taken from the columns."""
    plain: dict[str, bytes] = {
        "keys": manifest.keys,
        "key_bytes": _spread(lengths_of(manifest.key_ends)),
        "sizes": _spread(manifest.sizes),
        "tags": manifest.tags,
        "tag_bytes": _spread(lengths_of(manifest.tag_ends)),
        "counts": _spread(manifest.counts),
        "names": _spread(manifest.names),
        "formats": _spread(manifest.formats),
    }
    stored = {name: bytes(cramjam.zstd.compress(data, level=_LEVEL)) for name, data in plain.items()}
    head = msgspec.structs.replace(
        manifest.head,
        objects=len(manifest.sizes),
        key_bytes=len(manifest.keys),
        tag_bytes=len(manifest.tags),
        columns={name: len(data) for name, data in stored.items()},
    )
    text = msgspec.json.encode(head)
    whole = b"".join((_MAGIC, len(text).to_bytes(4, "little"), text, *stored.values()))
    return whole + hashlib.blake2b(whole, digest_size=_DIGEST_BYTES).digest()


def parse(data: memoryview) -> Manifest:
    """Return the content of a manifest, which is not trusted; takes a tenth of a microsecond for each object.

    Raises:
        ValueError: it is no manifest, damaged, or of another version; one line.
    """
    head, at = _head(data)
    columns = _Columns(data, head, at)
    count = head.objects
    key_ends = _ends(columns.numbers("key_bytes", count, np.uint16), head.key_bytes, _KEY_BYTES_MAX, "keys")
    keys = _checked_keys(columns.raw("keys", head.key_bytes), key_ends)
    tag_ends = _ends(columns.numbers("tag_bytes", count, np.uint16), head.tag_bytes, _TAG_BYTES_MAX, "etags")
    return Manifest(
        head,
        keys,
        key_ends,
        _between(columns.numbers("sizes", count, np.int64), 0, 1 << 62, "sizes"),
        columns.raw("tags", head.tag_bytes),
        tag_ends,
        _between(columns.numbers("counts", count, np.int64), -1, SAMPLES_MAX, "counts of samples"),
        _between(columns.numbers("names", count, np.uint16), 0, max(len(head.names), 1), "names"),
        _between(columns.numbers("formats", count, np.uint16), 0, len(head.formats), "formats"),
    )


def _head(data: memoryview) -> tuple[Head, int]:
    """Return the head, after the whole file is checked, and the offset of the first column."""
    least = len(_MAGIC) + 4 + _DIGEST_BYTES
    if len(data) < least or bytes(data[: len(_MAGIC) - 1]) != _MAGIC[:-1]:
        raise ValueError(f"expected a manifest of feedd, got {len(data)} other bytes")
    if data[len(_MAGIC) - 1] != _MAGIC[-1]:
        raise ValueError(f"expected a manifest of version {_MAGIC[-1]}, got version {data[len(_MAGIC) - 1]}")
    body, digest = data[:-_DIGEST_BYTES], bytes(data[-_DIGEST_BYTES:])
    found = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
    if found != digest:
        raise ValueError(f"expected a manifest with digest {digest.hex()[:16]}, got {found.hex()[:16]}: it is damaged")
    at = len(_MAGIC) + 4
    size = int.from_bytes(data[at - 4 : at], "little")
    if size > min(_HEAD_BYTES_MAX, len(body) - at):
        raise ValueError(f"expected a head of at most {min(_HEAD_BYTES_MAX, len(body) - at)} bytes, got {size}")
    try:
        head = msgspec.json.decode(data[at : at + size], type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected the head of a manifest, got {error}") from error
    numbers = head.objects, head.key_bytes, head.tag_bytes
    if min(numbers) < 0 or head.objects > _OBJECTS_PER_BYTE * len(data):
        raise ValueError(f"expected numbers that {len(data)} bytes can hold, got {numbers}")
    if head.key_bytes > _KEY_BYTES_MAX * head.objects or head.tag_bytes > _TAG_BYTES_MAX * head.objects:
        raise ValueError(f"expected keys and etags of {head.objects} objects, got {numbers[1:3]} bytes")
    if not head.formats or head.formats[0]:
        raise ValueError("expected formats that begin with the empty one")
    return head, at + size


class _Columns:
    """Decompresses columns, each into memory of the length that it must have."""

    def __init__(self, data: memoryview, head: Head, at: int) -> None:
        self._data = data
        self._spans: dict[str, tuple[int, int]] = {}
        for name, size in head.columns.items():
            if size < 0 or at + size > len(data) - _DIGEST_BYTES:
                raise ValueError(f"expected a column within {len(data)} bytes, got {name!r:.80} of {size} bytes")
            self._spans[name] = at, at + size
            at += size

    def raw(self, name: str, size: int) -> bytes:
        """Return the plain bytes of a column, ``size`` of them."""
        return self._plain(name, size).tobytes()

    def numbers(self, name: str, count: int, dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - any of numpy's integers
        """Return a column of numbers."""
        width = np.dtype(dtype).itemsize
        spread = self._plain(name, count * width).reshape(width, count)
        found: NDArray[Any] = np.ascontiguousarray(spread.T).view(dtype).reshape(count)
        return found

    def _plain(self, name: str, size: int) -> NDArray[np.uint8]:
        if name not in self._spans:
            raise ValueError(f"expected a column {name!r}, got none")
        low, high = self._spans[name]
        found = np.empty(size, np.uint8)
        if not size:
            return found
        try:
            got = cramjam.zstd.decompress_into(self._data[low:high], found.data)
        except Exception as error:  # cramjam has one class of errors, which is not exported
            raise ValueError(f"expected {size} bytes in column {name!r}, got {error}") from error
        if got != size:
            raise ValueError(f"expected {size} bytes in column {name!r}, got {got}")
        return found


def lengths_of(ends: Sequence[int]) -> NDArray[np.uint16]:
    """Return the lengths of texts, from the start of the first and the end of each."""
    return np.diff(_array(ends)).astype(np.uint16)


def _array(ends: Sequence[int]) -> NDArray[np.int64]:
    return np.arange(ends.start, ends.stop, ends.step) if isinstance(ends, range) else np.asarray(ends, np.int64)


def _spread(numbers: NDArray[Any]) -> bytes:
    """Return numbers byte by byte, little-endian."""
    width = numbers.dtype.itemsize
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    return little.view(np.uint8).reshape(-1, width).T.tobytes()


def _ends(lengths: NDArray[np.uint16], total: int, most: int, what: str) -> Sequence[int]:
    """Return the ends of texts of these lengths; as a range if all have one length."""
    count = len(lengths)
    if count and int(lengths.max()) > most:
        raise ValueError(f"expected {what} of at most {most} bytes, got {int(lengths.max())}")
    if int(lengths.sum(dtype=np.int64)) != total:
        raise ValueError(f"expected {what} of {total} bytes, got {int(lengths.sum(dtype=np.int64))}")
    if count and total and int(lengths.min()) == int(lengths.max()):
        return range(0, total + 1, total // count)  # takes no memory
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends.data  # its items are of type int


def _checked_keys(keys: bytes, ends: Sequence[int]) -> bytes:
    """Return the keys if each is text by itself."""
    try:
        keys.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected keys in UTF-8, got other bytes at {error.start}") from error
    if len(ends) > 1 and not lengths_of(ends).min():
        raise ValueError("expected keys, got an empty one")
    first = np.frombuffer(keys, np.uint8)[_array(ends)[:-1]]
    if ((first & 0xC0) == _CONTINUATION).any():
        raise ValueError("expected keys in UTF-8, got one that ends inside a character")
    return keys


def _between(numbers: NDArray[Any], low: int, high: int, what: str) -> NDArray[Any]:
    """Return numbers if all lie in the half-open range."""
    if len(numbers) and not low <= int(numbers.min()) <= int(numbers.max()) < high:
        raise ValueError(f"expected {what} from {low} to {high - 1}, got {int(numbers.min())} to {int(numbers.max())}")
    return numbers
