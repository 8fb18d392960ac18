"""Compressed with Brotli, as MosaicML's shards may be: one stream, and nothing behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from feedd.convert.columnar import loaded, needs
from feedd.convert.streams import UnpackingForm
from feedd.errors import BadShard
from feedd.formats.suffixes import UNBROTLI

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.protocols import PartialObject, ShardWriter

_IN_BYTES: Final = 128 << 10
_OUT_BYTES: Final = 1 << 20


class BrotliForm(UnpackingForm):
    """``protocols.ShardConverter`` of Brotli; stateless."""

    name = UNBROTLI

    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises BadShard, Unsupported."""
        library = _library(url)
        stream, data, at = library.Decompressor(), held.data, 0
        try:
            while not stream.is_finished():
                piece: memoryview | bytes = b""
                if stream.can_accept_more_data():
                    piece = data[at : at + _IN_BYTES]
                    at += len(piece)
                made = stream.process(piece, output_buffer_limit=_OUT_BYTES)
                if made:
                    out.write(made)
                elif not piece and not stream.is_finished():
                    _fail(url, at, "the end of a Brotli stream", "the end of the object")
        except library.error as error:
            _fail(url, at, "one whole Brotli stream and nothing behind it", str(error), error)
        if at < len(data):
            _fail(url, at, "nothing behind a Brotli stream", f"{len(data) - at} bytes")


def _library(url: str) -> ModuleType:
    library = loaded("brotli", "compressed", url)
    # before 1.2 it unpacks all that a piece holds at once, however much that is
    if not hasattr(library.Decompressor, "can_accept_more_data"):
        raise needs("compressed", url, ImportError(name="brotli 1.2 or later"))
    return library


def _fail(url: str, at: int, expected: str, got: str, cause: Exception | None = None) -> NoReturn:
    raise BadShard(f"expected {expected} near byte {at}, got {got}", object=url, stage="decode") from cause


UNBROTLI_FORM: Final = BrotliForm()
