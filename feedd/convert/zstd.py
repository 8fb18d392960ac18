"""Compressed with Zstandard: frames after one another, skippable ones among them.

The borders of frames and blocks are read before anything is unpacked: so a frame that was cut short is told from a
whole one, and each is unpacked piece by piece into memory that is used again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NoReturn

from feedd.convert.columnar import loaded
from feedd.convert.streams import UnpackingForm
from feedd.errors import BadShard
from feedd.formats.suffixes import UNZSTD

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.protocols import PartialObject, ShardWriter

_OUT_BYTES: Final = 1 << 20
_MAGIC: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A50
_WINDOW_BYTES_MAX: Final = 128 << 20  # what level 22 asks for
_WORD: Final = struct.Struct("<I")


class ZstdForm(UnpackingForm):
    """``protocols.ShardConverter`` of Zstandard; stateless."""

    name = UNZSTD

    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises BadShard, Unsupported."""
        library = loaded("zstandard", "compressed", url)
        data, at = held.data, 0
        buffer = bytearray(_OUT_BYTES)
        context = library.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        if not data:
            _fail(url, 0, "a Zstandard frame", "an empty object")
        try:
            while at < len(data):
                end, empty = _frame(library, data, at, url)
                if not empty:
                    with context.stream_reader(data[at:end], read_across_frames=False) as reader:
                        while count := reader.readinto(buffer):
                            out.write(memoryview(buffer)[:count])
                at = end
        except library.ZstdError as error:
            raise BadShard(
                f"expected a whole Zstandard frame at byte {at}, got {error}", object=url, stage="decode"
            ) from error


def _frame(library: ModuleType, data: memoryview, at: int, url: str) -> tuple[int, bool]:
    """Return the end of the frame that begins at ``at``, and whether nothing is in it."""
    magic = _number(data, at, url)
    if magic & ~0xF == _SKIPPABLE:
        end = at + 8 + _number(data, at + 4, url)
        if end > len(data):
            _fail(url, at, f"a skippable frame up to byte {end}", f"the end of the object after {len(data)} bytes")
        return end, True
    if magic != _MAGIC:
        _fail(url, at, "a Zstandard frame", f"the bytes {bytes(data[at : at + 4])!r}")
    head = data[at : at + 18]  # the longest there is
    parameters = library.get_frame_parameters(head)
    if parameters.dict_id:
        _fail(url, at, "a frame without a dictionary", f"one that needs dictionary {parameters.dict_id}")
    end, last = at + int(library.frame_header_size(head)), False
    while not last:
        block = int.from_bytes(data[end : end + 3], "little")
        if end + 3 > len(data):
            _fail(url, end, "a block of a Zstandard frame", f"the end of the object after {len(data)} bytes")
        last, repeated = bool(block & 1), block >> 1 & 3 == 1
        end += 3 + (1 if repeated else block >> 3)
    end += 4 if parameters.has_checksum else 0
    if end > len(data):
        _fail(url, at, f"a frame up to byte {end}", f"the end of the object after {len(data)} bytes")
    return end, False


def _number(data: memoryview, at: int, url: str) -> int:
    if at + _WORD.size > len(data):
        _fail(url, at, "the head of a Zstandard frame", f"the end of the object after {len(data)} bytes")
    return int(_WORD.unpack_from(data, at)[0])


def _fail(url: str, at: int, expected: str, got: str) -> NoReturn:
    raise BadShard(f"expected {expected} at byte {at}, got {got}", object=url, stage="decode")


UNZSTD_FORM: Final = ZstdForm()
