"""A worker's answer to a request to convert an object into a shard."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Final

from feedd.convert.conversion_io import FileOut, MappedObject
from feedd.convert.conversion_registry import get, is_unpacked
from feedd.convert.memory_limits import at_most
from feedd.errors import BadShard
from feedd.formats.refused import say_packed
from feedd.values import ByteRange
from feedd.workers.messages import ConvertedAnswer, NeedRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.workers.messages import MakeRequest

_HEAD_BYTES: Final = 8


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
                wanted = [span for span in converter.wanted(held, params) if not held.holds(span)]
            if wanted:
                _check(wanted, request)
                spans_wanted = tuple((span.start, span.end) for span in wanted)
                return NeedRanges(request.id, time.perf_counter() - began_s, spans_wanted)
            with at_most(out.extra_bytes, request.url):
                format_name = converter.make(held, request.url, params, out)
        except BadShard as error:
            if is_unpacked(request.converter):
                say_packed(error, bytes(held.data[:_HEAD_BYTES]), request.converter)
            raise
    return ConvertedAnswer(request.id, time.perf_counter() - began_s, out.at, format_name)


def _check(wanted: Sequence[ByteRange], request: MakeRequest) -> None:
    """Refuse ranges outside of the object, which a broken object may ask for."""
    for span in wanted:
        if span.end > request.size_bytes:
            raise BadShard(
                f"expected ranges within {request.size_bytes} bytes, got bytes {span.start} to {span.end}",
                object=request.url,
                stage="decode",
            )
