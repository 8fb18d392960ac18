"""A worker's answer to a request to make a shard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from feedd.convert.conversion_io import FileOut, HeldObject
from feedd.convert.conversion_registry import get, is_unpacked, split
from feedd.convert.memory_limits import at_most
from feedd.errors import BadShard
from feedd.formats.refused import say_packed
from feedd.values import ByteRange
from feedd.workers.messages import Made, NeedRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.workers.messages import MakeRequest

_HEAD_BYTES: Final = 8


def make_shard(request: MakeRequest, fds: Sequence[int]) -> Made | NeedRanges:
    """Make a shard of what is held, or say what else is needed.

    Raises:
        BadShard: broken bytes. Unsupported: no such form, or a library is missing.
        ResourceExhausted: no room for what is made.
    """
    began_s = time.perf_counter()
    source, target = fds
    name, params = split(request.form)
    form = get(name)
    spans = [ByteRange(*span) for span in request.spans]
    with HeldObject(source, request.size_bytes, spans) as held:
        limits = request.limit_bytes, request.room_bytes
        out = FileOut(target, request.out_at, *limits, request.url, request.entry_bytes)
        try:
            with at_most(out.beside_bytes, request.url):
                wanted = [span for span in form.wanted(held, params) if not held.holds(span)]
            if wanted:
                _check(wanted, request)
                spans_wanted = tuple((span.start, span.end) for span in wanted)
                return NeedRanges(request.id, time.perf_counter() - began_s, spans_wanted)
            with at_most(out.beside_bytes, request.url):
                format_name = form.make(held, request.url, params, out)
        except BadShard as error:
            if is_unpacked(name):
                say_packed(error, bytes(held.data[:_HEAD_BYTES]), name)
            raise
    return Made(request.id, time.perf_counter() - began_s, out.at, format_name)


def _check(wanted: Sequence[ByteRange], request: MakeRequest) -> None:
    """Refuse ranges outside of the object: a broken one may say so."""
    for span in wanted:
        if span.end > request.size_bytes:
            raise BadShard(
                f"expected what is needed within {request.size_bytes} bytes, got bytes {span.start} to {span.end}",
                object=request.url,
                stage="decode",
            )
