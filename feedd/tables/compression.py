"""Decompresses objects, with or without a conversion afterwards.

Only Snappy is read with cramjam. For every other compression cramjam decompresses a whole object in one call. It does
not bound the memory of the output, and it ignores bytes after a Brotli or zlib stream. Zstandard is read with
zstandard. backports.zstd, which has the interface of ``bz2``, takes up to 1.1 times as long, or 1.9 times for small
frames.
"""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, TypeAlias, cast

from feedd.errors import BadShard, FeeddError
from feedd.flow.sink_file import memory_file
from feedd.formats.format_registry import format_for
from feedd.formats.suffixes import BUNZIP2, GUNZIP, INFLATE, UNBROTLI, UNSNAPPY, UNXZ, UNZSTD, uncompressed
from feedd.tables.columns import loaded, needs
from feedd.tables.files import FileOut, MappedObject
from feedd.tables.memory import check_memory
from feedd.tables.ranges import WholeObject
from feedd.units import format_size
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from feedd.protocols import PartialObject, ShardConverter, ShardWriter


_IN_BYTES: Final = 128 << 10
_OUT_BYTES: Final = 1 << 20
_XZ_MEMORY_BYTES: Final = 256 << 20  # the strongest preset of xz needs 65 MiB

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_WINDOW_BYTES_MAX: Final = 128 << 20  # what level 22 needs
_WORD: Final = struct.Struct("<I")

_SNAPPY_FRAMED: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_HINT: Final = "compress it with zstd or gzip instead, or with Snappy as MosaicML's writer does"
_SNAPPY_RATIO_MAX: Final = 64 / 3
"""Maximum output per input byte: an element of three bytes copies 64 bytes (google/snappy, format_description)."""


class CompressedConverter(WholeObject, ABC):
    """``protocols.ShardConverter`` of one compression; stateless."""

    name: str

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Decompress; see ``ShardConverter.make``. ``params``: the inner format; empty: as the object's name says."""
        format_name = params or format_for(uncompressed(url.rsplit("/", 1)[-1].lower())[0])
        self.decompress(held.data, url, out)
        return format_name

    @abstractmethod
    def decompress(self, data: memoryview, url: str, out: ShardWriter) -> None:
        """Write the decompressed ``data``; raises as ``ShardConverter.make``."""


class ChainedConverter(WholeObject):
    """``protocols.ShardConverter`` that decompresses objects and then converts them; stateless.

    Args:
        outer: decompresses the object into memory.
        inner: makes the shard; it gets the parameters.
    """

    def __init__(self, outer: CompressedConverter, inner: ShardConverter) -> None:
        self._outer, self._inner = outer, inner
        self.name = f"{outer.name}+{inner.name}"

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Decompress, then convert; see ``ShardConverter.make``. The decompressed size has the limit of any shard."""
        fd, inner_url = memory_file("feedd-unpacked"), url
        try:
            # the decompressed object and the shard may both be in memory
            memory_bytes = out.memory_bytes // 2 if isinstance(out, FileOut) else out.limit_bytes
            unpacked = FileOut(fd, 0, out.limit_bytes, memory_bytes, url)
            self._outer.decompress(held.data, url, unpacked)
            folder, slash, name = url.rpartition("/")
            inner_url = f"{folder}{slash}{uncompressed(name.lower())[0]}"
            with MappedObject(fd, unpacked.at, [ByteRange(0, unpacked.at)]) as inside:
                return self._inner.make(inside, inner_url, params, out)
        except FeeddError as error:
            if error.object == inner_url:
                error.object = url  # the object in the store
            raise
        finally:
            os.close(fd)


class Decompressor(Protocol):
    """Decompresses one stream, with the interface of ``bz2`` and ``lzma``."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether more input is needed for more output."""

    @property
    def unused_data(self) -> bytes:
        """Input bytes after the end of the stream."""

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        """Take input and return at most ``max_length`` bytes of output."""


Library: TypeAlias = "tuple[Callable[[], Decompressor], tuple[type[Exception], ...]]"
"""A function that begins a stream, and the exceptions that it raises for broken data."""


class StreamConverter(CompressedConverter):
    """Decompresses consecutive streams, piece by piece.

    Args:
        name: name of the conversion.
        library: loads the library; raises Unsupported, which names the URL, if it is not installed.
        padding: zeros after a stream must be a multiple of this; 0: none are allowed.
        many_streams: whether another stream may follow.
    """

    def __init__(
        self, name: str, library: Callable[[str], Library], *, padding: int = 0, many_streams: bool = True
    ) -> None:
        self.name = name
        self._library = library
        self._padding = padding
        self._many_streams = many_streams

    def decompress(self, data: memoryview, url: str, out: ShardWriter) -> None:
        """Write the decompressed streams; raises BadShard, Unsupported."""
        start, errors = self._library(url)
        at = 0
        try:
            while True:
                at = self._stream(start(), data, at, url, out)
                at = self._after(data, at, url)
                if at == len(data):
                    return
                if not self._many_streams:
                    self._fail(url, at, "no bytes after the stream", f"{len(data) - at} bytes")
        except errors as error:
            self._fail(url, at, "whole compressed data", str(error), error)

    def _stream(self, stream: Decompressor, data: memoryview, at: int, url: str, out: ShardWriter) -> int:
        """Decompress one stream and return its end."""
        began = at
        piece: memoryview | bytes = b""
        while not stream.eof:
            if stream.needs_input:
                piece = data[at : at + _IN_BYTES]
                at += len(piece)
            made = stream.decompress(piece, _OUT_BYTES)
            if made:
                out.write(made)
            elif at == len(data) and not len(piece) and not stream.eof:
                self._fail(url, at, f"the end of the stream that began at byte {began}", "the end of the object")
            piece = b""
        return at - len(stream.unused_data)

    def _after(self, data: memoryview, at: int, url: str) -> int:
        """Skip the zeros that may pad a stream and return the start of the next stream."""
        if not self._padding or at == len(data) or data[at]:
            return at
        start = at
        while at < len(data):
            piece = bytes(data[at : at + _IN_BYTES])
            rest = piece.lstrip(b"\0")
            at += len(piece) - len(rest)
            if rest:
                break
        if (at - start) % self._padding:
            self._fail(url, start, f"padding of a multiple of {self._padding} bytes", f"{at - start} zeros")
        return at

    def _fail(self, url: str, at: int, expected: str, got: str, cause: Exception | None = None) -> NoReturn:
        raise BadShard(
            f"expected {expected} near byte {at}, got {got}",
            object=url,
            hint=f"{self.name} cannot read it",
            stage="decode",
        ) from cause


class ZstdConverter(CompressedConverter):
    """Decompresses consecutive Zstandard frames, including skippable ones.

    The bounds of a frame and of its blocks are read before it is decompressed, because the library reports neither
    where a frame ends nor that it was cut short.
    """

    name = UNZSTD

    def decompress(self, data: memoryview, url: str, out: ShardWriter) -> None:
        """Write the decompressed frames; raises BadShard, Unsupported."""
        library = loaded("zstandard", "compressed", url)
        at = 0
        buffer = bytearray(_OUT_BYTES)
        context = library.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
        if not data:
            self._fail(url, 0, "a Zstandard frame", "an empty object")
        try:
            while at < len(data):
                end, empty = self._frame(library, data, at, url)
                if not empty:
                    with context.stream_reader(data[at:end], read_across_frames=False) as reader:
                        while count := reader.readinto(buffer):
                            out.write(memoryview(buffer)[:count])
                at = end
        except library.ZstdError as error:
            self._fail(url, at, "a whole Zstandard frame", str(error), error)

    def _frame(self, library: ModuleType, data: memoryview, at: int, url: str) -> tuple[int, bool]:
        """Return the end of the frame that begins at ``at``, and whether it is empty."""
        magic = self._number(data, at, url)
        if magic & ~0xF == _ZSTD_SKIPPABLE:
            end = at + 8 + self._number(data, at + 4, url)
            if end > len(data):
                self._fail(url, at, f"a skippable frame up to byte {end}", f"the end of the object at {len(data)}")
            return end, True
        if magic != _ZSTD_MAGIC:
            self._fail(url, at, "a Zstandard frame", f"the bytes {bytes(data[at : at + 4])!r}")
        head = data[at : at + 18]  # the longest possible head
        parameters = library.get_frame_parameters(head)
        if parameters.dict_id:
            self._fail(url, at, "a frame without a dictionary", f"one that needs dictionary {parameters.dict_id}")
        end, last = at + int(library.frame_header_size(head)), False
        while not last:
            block = int.from_bytes(data[end : end + 3], "little")
            if end + 3 > len(data):
                self._fail(url, end, "a block of a Zstandard frame", f"the end of the object at {len(data)}")
            last, repeated = bool(block & 1), block >> 1 & 3 == 1
            end += 3 + (1 if repeated else block >> 3)
        end += 4 if parameters.has_checksum else 0
        if end > len(data):
            self._fail(url, at, f"a frame up to byte {end}", f"the end of the object at {len(data)}")
        return end, False

    def _number(self, data: memoryview, at: int, url: str) -> int:
        if at + _WORD.size > len(data):
            self._fail(url, at, "the head of a Zstandard frame", f"the end of the object at {len(data)}")
        return int(_WORD.unpack_from(data, at)[0])

    def _fail(self, url: str, at: int, expected: str, got: str, cause: Exception | None = None) -> NoReturn:
        raise BadShard(f"expected {expected} at byte {at}, got {got}", object=url, stage="decode") from cause


class SnappyConverter(CompressedConverter):
    """Decompresses one raw Snappy block, as MosaicML writes it. The block begins with the length of its content.

    A block is decompressed as a whole, in memory in addition to the shard. Two other Snappy formats are not supported:
    Snappy's own framing, and Hadoop's blocks, each behind two big-endian lengths, whose first byte is zero.
    """

    name = UNSNAPPY

    def decompress(self, data: memoryview, url: str, out: ShardWriter) -> None:
        """Write the decompressed block; raises BadShard, ResourceExhausted, Unsupported."""
        library = loaded("cramjam", "compressed", url)
        if bytes(data[: len(_SNAPPY_FRAMED)]) == _SNAPPY_FRAMED:
            self._fail(url, "one raw block", "Snappy's own frames", hint=_SNAPPY_HINT)
        if len(data) > 1 and not data[0]:  # an empty raw block ends after a zero
            self._fail(url, "one raw block", "blocks with lengths, as Hadoop and Spark write", hint=_SNAPPY_HINT)
        try:
            size_bytes = library.snappy.decompress_raw_len(data)
            most_bytes = min(out.limit_bytes, int(_SNAPPY_RATIO_MAX * len(data)))
            if size_bytes > most_bytes:
                expected = f"at most {format_size(most_bytes)} in {format_size(len(data))}"
                self._fail(url, expected, format_size(size_bytes))
            check_memory(size_bytes, out, url, "an unpacked block")
            buffer = bytearray(size_bytes)
            made = library.snappy.decompress_raw_into(data, buffer)
        except library.DecompressionError as error:
            self._fail(url, "a whole block", str(error), cause=error)
        if made != size_bytes:
            self._fail(url, f"a block of {size_bytes} bytes", str(made))
        out.write(buffer)

    def _fail(self, url: str, expected: str, got: str, *, hint: str = "", cause: Exception | None = None) -> NoReturn:
        raise BadShard(f"expected {expected} of Snappy, got {got}", object=url, hint=hint, stage="decode") from cause


class _Zlib:
    """``zlib`` as a ``Decompressor``."""

    def __init__(self, wbits: int = 31) -> None:
        self._inner = zlib.decompressobj(wbits=wbits)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        tail = self._inner.unconsumed_tail
        return self._inner.decompress(tail + bytes(data) if tail else data, max_length)


class _Brotli:
    """``brotli`` as a ``Decompressor``; the library itself refuses bytes after the end within a piece."""

    unused_data = b""

    def __init__(self, library: ModuleType) -> None:
        self._inner = library.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    @property
    def needs_input(self) -> bool:
        return bool(self._inner.can_accept_more_data())

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        return cast("bytes", self._inner.process(data, output_buffer_limit=max_length))


def _gzip(url: str) -> Library:
    del url
    try:
        from isal import igzip_lib, isal_zlib  # noqa: PLC0415 - optional, and used only in workers
    except ImportError:
        return _Zlib, (zlib.error,)
    errors = (zlib.error, cast("type[Exception]", isal_zlib.error))
    return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), errors


def _brotli(url: str) -> Library:
    library = loaded("brotli", "compressed", url)
    # before 1.2 brotli decompresses a whole piece at once, without a limit of the output
    if not hasattr(library.Decompressor, "can_accept_more_data"):
        raise needs("compressed", url, ImportError(name="brotli 1.2 or later"))
    return lambda: _Brotli(library), (library.error,)


GUNZIP_CONVERTER: Final = StreamConverter(GUNZIP, _gzip, padding=1)
INFLATE_CONVERTER: Final = StreamConverter(INFLATE, lambda _: (lambda: _Zlib(wbits=15), (zlib.error,)))
BUNZIP2_CONVERTER: Final = StreamConverter(BUNZIP2, lambda _: (bz2.BZ2Decompressor, (OSError, ValueError, EOFError)))
UNXZ_CONVERTER: Final = StreamConverter(
    UNXZ, lambda _: (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), (lzma.LZMAError,)), padding=4
)
UNZSTD_CONVERTER: Final = ZstdConverter()
UNBROTLI_CONVERTER: Final = StreamConverter(UNBROTLI, _brotli, many_streams=False)
UNSNAPPY_CONVERTER: Final = SnappyConverter()
