"""Two forms one after the other: unpacked, then made a shard of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from feedd.convert.conversion_io import FileOut, HeldObject
from feedd.convert.whole_object import WholeObject
from feedd.formats.suffixes import uncompressed
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.protocols import PartialObject, ShardConverter, ShardWriter


class Unpacker(Protocol):
    """A form that only unpacks."""

    @property
    def name(self) -> str:
        """Of the form."""

    def unpack(self, held: PartialObject, url: str, out: ShardWriter) -> None:
        """Write what was packed; raises as ``ShardConverter.make``."""


class PackedForm(WholeObject):
    """``protocols.ShardConverter`` of compressed objects that need a form unpacked too; stateless.

    Args:
        outer: unpacks the object, into memory.
        inner: makes the shard, and is given the parameters.
    """

    def __init__(self, outer: Unpacker, inner: ShardConverter) -> None:
        self._outer, self._inner = outer, inner
        self.name = f"{outer.name}+{inner.name}"

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Unpack, then make; see ``ShardConverter.make``. What is unpacked is bounded as any shard is."""
        fd = os.memfd_create("feedd-unpacked", os.MFD_CLOEXEC)
        try:
            # both may be in memory: what is unpacked, and what is made of it
            room_bytes = out.room_bytes // 2 if isinstance(out, FileOut) else out.limit_bytes
            unpacked = FileOut(fd, 0, out.limit_bytes, room_bytes, url)
            self._outer.unpack(held, url, unpacked)
            with HeldObject(fd, unpacked.at, [ByteRange(0, unpacked.at)]) as inside:
                folder, slash, name = url.rpartition("/")
                return self._inner.make(inside, f"{folder}{slash}{uncompressed(name.lower())[0]}", params, out)
        finally:
            os.close(fd)
