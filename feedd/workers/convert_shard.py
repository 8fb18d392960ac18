"""A worker's answer to a request to convert an object into a shard."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from feedd.convert.conversion_io import FileOut, MappedObject
from feedd.convert.conversion_registry import get, is_unpacked
from feedd.convert.memory_limits import at_most
from feedd.errors import BadShard, FeeddError
from feedd.formats.refused import say_packed
from feedd.formats.table import TableFormat
from feedd.values import ByteRange
from feedd.workers.index_columns import indexed
from feedd.workers.messages import ConvertedAnswer, NeedRanges, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import PartialObject, ShardConverter
    from feedd.workers.messages import Indexed, MakeRequest

_HEAD_BYTES: Final = 8
_INDEX_BYTES_MAX: Final = 32 << 10  # of the 96 KiB of an answer
_TABLE: Final = TableFormat()


def make_shard(request: MakeRequest, fds: Sequence[int]) -> ConvertedAnswer | NeedRanges:
    """Convert the available ranges of an object into a shard, or return which ranges are missing.

    Raises:
        BadShard: the object's bytes are broken.
        Unsupported: the conversion is unknown, or its library is missing.
        ResourceExhausted: not enough memory for the shard.
    """
    began_s = time.perf_counter()
    source, target = fds
    params = zlib.decompress(request.params).decode()
    converter = get(request.converter)
    spans = [ByteRange(*span) for span in request.spans]
    with MappedObject(source, request.size_bytes, spans) as held:
        limits = request.limit_bytes, request.memory_bytes
        out = FileOut(target, request.out_at, *limits, request.url, request.entry_bytes)
        try:
            with at_most(out.extra_bytes, request.url):
                ranges, table_bytes = _wanted(converter, held, params)
                wanted = [span for span in ranges if not held.holds(span)]
            if wanted:
                _check(wanted, request)
                spans_wanted = tuple((span.start, span.end) for span in wanted)
                return NeedRanges(request.id, time.perf_counter() - began_s, spans_wanted, table_bytes)
            with at_most(out.extra_bytes, request.url):
                format_name = converter.make(held, request.url, params, out)
        except BadShard as error:
            if is_unpacked(request.converter):
                say_packed(error, bytes(held.data[:_HEAD_BYTES]), request.converter)
            raise
    index = _index(request, target, out.at) if format_name == _TABLE.name else None
    return ConvertedAnswer(request.id, time.perf_counter() - began_s, out.at, format_name, index)


@runtime_checkable
class ImportsLate(Protocol):
    """A converter that imports its libraries when it first reads an object."""

    def import_libraries(self) -> None:
        """Import them now.

        Raises:
            Unsupported: a library is missing.
        """


@runtime_checkable
class TellsSize(Protocol):
    """A converter of tables that may know the size of the table before it has the values."""

    def wanted_and_size(self, held: PartialObject, params: str) -> tuple[tuple[ByteRange, ...], int]:
        """Return the same as ``ShardConverter.wanted``, and the size of the table, or -1 if it is not known."""


def _wanted(converter: ShardConverter, held: PartialObject, params: str) -> tuple[tuple[ByteRange, ...], int]:
    if isinstance(converter, TellsSize):
        return converter.wanted_and_size(held, params)
    return converter.wanted(held, params), -1


def import_libraries(name: str) -> None:
    """Import what the converter of a name needs, so that the first conversion does not wait for that.

    Raises:
        Unsupported: there is no such conversion, or its library is missing.
    """
    converter = get(name)
    if isinstance(converter, ImportsLate):
        converter.import_libraries()


def _index(request: MakeRequest, target: int, size_bytes: int) -> Indexed | None:
    """Return the index of the table just written if it is regular, because then its foot tells everything."""
    if 0 <= request.entry_bytes < size_bytes:
        return None  # the foot was not written
    # If the table cannot be read, the request for its index tells why.
    with (
        suppress(FeeddError, OSError, ValueError, BufferError),
        MappedObject(target, request.out_at + size_bytes) as file,
        file.data[request.out_at :] as table,
    ):
        index = _TABLE.regular_index(table, request.url)
        message = None if index is None else indexed(request.id, 0.0, index, index.strides)
        return message if message is not None and len(encode(message)) <= _INDEX_BYTES_MAX else None
    return None


def _check(wanted: Sequence[ByteRange], request: MakeRequest) -> None:
    """Refuse ranges outside of the object, which a broken object may ask for."""
    for span in wanted:
        if span.end > request.size_bytes:
            raise BadShard(
                f"expected ranges within {request.size_bytes} bytes, got bytes {span.start} to {span.end}",
                object=request.url,
                stage="decode",
            )
