"""Compressed with gzip, zlib, bzip2 or xz: one stream, or several after one another."""

from __future__ import annotations

import bz2
import lzma
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, cast

from feedd.convert.whole_object import WholeObject
from feedd.errors import BadShard
from feedd.formats.format_registry import format_for
from feedd.formats.suffixes import BUNZIP2, GUNZIP, INFLATE, UNXZ, uncompressed

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import PartialObject, ShardWriter

_IN_BYTES: Final = 128 << 10
_OUT_BYTES: Final = 1 << 20
_XZ_MEMORY_BYTES: Final = 256 << 20  # the strongest preset of xz asks for 65 MiB


class Decompressor(Protocol):
    """What ``bz2`` and ``lzma`` offer for one stream."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing can come without more input."""

    @property
    def unused_data(self) -> bytes:
        """What came after the stream's end."""

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        """Take input, return at most so many bytes."""


class _Zlib:
    """``zlib`` with the interface of the others."""

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


def _gzip() -> Decompressor:
    try:
        from isal import igzip_lib  # noqa: PLC0415 - optional, and met in workers only
    except ImportError:
        return _Zlib()
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _gzip_errors() -> tuple[type[Exception], ...]:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - see above
    except ImportError:
        return (zlib.error,)
    return (zlib.error, cast("type[Exception]", isal_zlib.error))


class UnpackingForm(WholeObject, ABC):
    """``protocols.ShardConverter`` of what is only packed; stateless."""

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Unpack; see ``ShardConverter.make``. ``params``: the format of what was packed; empty: its name tells."""
        format_name = params or inner_format(url)
        self.unpack(held, url, out)
        return format_name

    @abstractmethod
    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises as ``ShardForm.make``."""


class StreamForm(UnpackingForm):
    """``protocols.ShardConverter`` of one compression; stateless.

    Args:
        name: of the form.
        start: begins a stream.
        errors: what the library raises for broken data, asked when needed.
        padding: bytes of zeros allowed after a stream: multiples of this; 0: none.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Decompressor],
        errors: Callable[[], tuple[type[Exception], ...]],
        padding: int,
    ) -> None:
        self.name = name
        self._start = start
        self._errors = errors
        self._padding = padding

    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises BadShard."""
        data, at = held.data, 0
        try:
            while True:
                at = self._stream(data, at, url, out)
                at = self._after(data, at, url)
                if at == len(data):
                    return
        except self._errors() as error:
            self._fail(url, at, "whole compressed data", str(error), error)

    def _stream(self, data: memoryview, at: int, url: str, out: ShardWriter) -> int:
        """Unpack one stream; return where it ends."""
        stream, began = self._start(), at
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
        """Pass over the zeros that may pad a stream; return where the next one begins."""
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


def inner_format(url: str) -> str:
    """Return the format of what was packed.

    Raises:
        Unsupported: none that this version reads.
    """
    return format_for(uncompressed(url.rsplit("/", 1)[-1].lower())[0])


GUNZIP_FORM: Final = StreamForm(GUNZIP, _gzip, _gzip_errors, padding=1)
INFLATE_FORM: Final = StreamForm(INFLATE, lambda: _Zlib(wbits=15), lambda: (zlib.error,), padding=0)
BUNZIP2_FORM: Final = StreamForm(BUNZIP2, bz2.BZ2Decompressor, lambda: (OSError, ValueError, EOFError), padding=0)
UNXZ_FORM: Final = StreamForm(
    UNXZ, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), lambda: (lzma.LZMAError,), padding=4
)
