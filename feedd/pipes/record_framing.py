"""What the reader of a FIFO gets of each object: its bytes, decompressed and wrapped if the channel says so. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, cast

from feedd.channels.channel import Compression, RecordWrapper
from feedd.errors import BadShard
from feedd.formats.recordio import head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedd.channels.channel import Channel

RECORD_BYTES_MAX: Final = (1 << 29) - 1
_IN_BYTES: Final = 256 << 10
_OUT_BYTES: Final = 1 << 20
_GZIP_WINDOW: Final = 31


class ObjectFraming:
    """Turns one object, or one attribute of a line, into the bytes for the reader.

    Args:
        channel: says whether objects are decompressed and wrapped.
        url: URL of the object, for messages.
        size_bytes: size of the object.
    """

    def __init__(self, channel: Channel, url: str, size_bytes: int) -> None:
        self._url = url
        self._wrapped = channel.record_wrapper is RecordWrapper.RECORDIO
        self._size_bytes = size_bytes
        self._gunzip = _Gunzip(url) if channel.compression is Compression.GZIP else None
        self._unpacked = bytearray()  # of a compressed object that is wrapped: its size goes first

    @property
    def is_plain(self) -> bool:
        """Whether the object's bytes are sent as they are, between ``begin`` and ``end``."""
        return self._gunzip is None

    def begin(self) -> bytes:
        """Return the bytes before the object.

        Raises:
            BadShard: the object is too large for a record.
        """
        if not self._wrapped or not self.is_plain:
            return b""
        return self._head(self._size_bytes)

    def unpack(self, data: memoryview) -> Iterator[bytes]:
        """Yield the decompressed bytes of the object's next piece, at most 1 MiB at a time.

        Raises:
            BadShard: the data is not gzip, or too large for a record.
        """
        assert self._gunzip is not None, "the object is not compressed"
        for piece in self._gunzip.feed(data):
            if not self._wrapped:
                yield piece
                continue
            self._unpacked += piece
            self._head(len(self._unpacked))

    def end(self) -> bytes | bytearray:
        """Return the bytes after the object.

        Raises:
            BadShard: compressed data ends too early.
        """
        if self._gunzip is not None:
            self._gunzip.finish()
            if not self._wrapped:
                return b""
            size_bytes = len(self._unpacked)
            self._unpacked[:0] = self._head(size_bytes)
            self._unpacked += bytes(-size_bytes % 4)
            return self._unpacked
        return bytes(-self._size_bytes % 4) if self._wrapped else b""

    def _head(self, size_bytes: int) -> bytes:
        if size_bytes > RECORD_BYTES_MAX:
            raise BadShard(
                f"expected at most {RECORD_BYTES_MAX} bytes for a RecordIO record, got {size_bytes}",
                object=self._url,
                hint="leave RecordWrapperType at None, or split the object",
                stage="pipe",
            )
        return head(size_bytes)


class _Gunzip:
    """Decompresses gzip data of one or more members, in pieces."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._begin, self._errors = _library()
        self._stream = self._begin()
        self._began = False  # whether the stream has had input

    def feed(self, data: memoryview) -> Iterator[bytes]:
        for at in range(0, len(data), _IN_BYTES):
            yield from self._feed(data[at : at + _IN_BYTES])

    def _feed(self, waiting: memoryview | bytes) -> Iterator[bytes]:
        while len(waiting):
            if self._stream.eof:
                waiting = bytes(waiting).lstrip(b"\0")  # tapes pad files with zeros
                if not waiting:
                    return
                self._stream, self._began = self._begin(), False
            self._began = True
            try:
                piece = self._stream.decompress(waiting, _OUT_BYTES)
            except self._errors as error:
                raise self._broken(str(error)) from error
            waiting = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                yield piece

    def finish(self) -> None:
        if not self._stream.eof:
            raise self._broken("the end of the object" if self._began else "no bytes")

    def _broken(self, got: str) -> BadShard:
        return BadShard(
            f"expected whole gzip data, got {got}",
            object=self._url,
            hint="CompressionType Gzip needs objects that are gzip files, all of them",
            stage="pipe",
        )


def _library() -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return what begins a stream, and the errors for broken data; isal takes a third of zlib's time."""
    try:
        from isal import isal_zlib  # noqa: PLC0415 - optional
    except ImportError:
        return (lambda: zlib.decompressobj(_GZIP_WINDOW)), (zlib.error,)
    return (lambda: isal_zlib.decompressobj(_GZIP_WINDOW)), (zlib.error, cast("type[Exception]", isal_zlib.error))
