"""LitData's chunks of plain values: an Arrow file behind a head without items, and its length behind that."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from feedd.convert.whole_object import TableForm
from feedd.errors import BadShard
from feedd.formats.litdata import ARROW_END

if TYPE_CHECKING:
    from feedd.protocols import PartialObject, ShardWriter

_LENGTH_BYTES: Final = 4


class LitDataArrowForm(TableForm):
    """``protocols.ShardConverter`` of such chunks; stateless."""

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table; see ``ShardConverter.make``."""
        data = held.data
        end = len(data) - len(ARROW_END) - _LENGTH_BYTES
        start = end - int.from_bytes(data[max(end, 0) :][:_LENGTH_BYTES], "little")
        if end < 0 or bytes(data[-len(ARROW_END) :]) != ARROW_END or start < 0:
            raise BadShard(
                f"expected a chunk with an Arrow file at its end, got {bytes(data[-12:])!r} there",
                object=url,
                hint="name the folder without litdata-arrow+ if its items are not plain values",
                stage="decode",
            )
        inner = data[start:end]
        try:
            return self._write(inner, url, params, out)
        finally:
            with contextlib.suppress(BufferError):  # an error's traceback may hold arrays over it; they end with it
                inner.release()


LITDATA_ARROW_FORM: Final = LitDataArrowForm("litdata-arrow", "feedd.convert.arrow_file", "parquet")
