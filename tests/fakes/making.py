"""Making shards in a test: an object of which some spans are here, and memory to write to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_registry import get as format_of
from feedd.recipe.encodings import parse_encoding
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.protocols import ShardConverter
    from feedd.shard_index import ShardIndex

URL = "s3://b/shard"
LIMIT_BYTES = 64 << 20


@dataclass
class HeldBytes:
    """``protocols.PartialObject`` over bytes."""

    size_bytes: int
    spans: tuple[ByteRange, ...]
    data: memoryview


@dataclass
class OutBytes:
    """``protocols.ShardWriter`` into memory."""

    limit_bytes: int = LIMIT_BYTES
    written: bytearray = field(default_factory=bytearray)

    @property
    def at(self) -> int:
        return len(self.written)

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        if self.at + view.nbytes > self.limit_bytes:
            raise BadShard("expected less", object=URL)
        self.written += view


@dataclass
class Made:
    """What became of an object."""

    shard: bytes
    index: ShardIndex
    fetched: list[ByteRange]

    @property
    def fetched_bytes(self) -> int:
        """How much was asked for."""
        return sum(span.size_bytes for span in self.fetched)

    def raw(self, name: str) -> list[bytes | None]:
        """Return the bytes of a field, None where a sample lacks it."""
        column = self.index.fields.index(name)
        places = zip(self.index.starts[column].tolist(), self.index.sizes[column].tolist(), strict=True)
        return [None if size < 0 else self.shard[start : start + size] for start, size in places]

    def values(self, name: str) -> list[Any]:
        """Return a field's values as Python has them."""
        encoding_of = self.index.encoding_of(self.index.fields.index(name))
        stored = parse_encoding(encoding_of)
        found: list[Any] = []
        for one in self.raw(name):
            if one is None or (stored is None and encoding_of != "text"):
                found.append(one)
            elif stored is None:
                found.append(one.decode())
            else:
                numbers = np.frombuffer(one, stored.dtype)
                found.append(numbers.reshape(stored.shape if stored.shape is not None else -1).tolist())
        return found


def make(form: ShardConverter, data: bytes, params: str = "", url: str = URL, limit_bytes: int = LIMIT_BYTES) -> Made:
    """Make a shard as a worker does, with nothing here but what the form asks for."""
    sparse = bytearray(len(data))
    spans: list[ByteRange] = []
    fetched: list[ByteRange] = []
    for _ in range(8):
        held = HeldBytes(len(data), tuple(_joined(spans)), memoryview(sparse).toreadonly())
        wanted = form.wanted(held, params)
        if not wanted:
            break
        for span in wanted:
            assert span.end <= len(data), f"expected a range within {len(data)} bytes, got {span}"
            sparse[span.start : span.end] = data[span.start : span.end]
        spans.extend(wanted)
        fetched.extend(wanted)
    else:
        raise AssertionError(f"expected an end of what is wanted, got {wanted}")
    out = OutBytes(limit_bytes)
    format_name = form.make(held, url, params, out)
    shard = bytes(out.written)
    index = format_of(format_name).index(memoryview(shard), url)
    inside = index.sizes >= 0
    assert ((index.starts >= 0) & (index.starts + index.sizes <= len(shard)))[inside].all()
    return Made(shard, index, fetched)


def _joined(spans: list[ByteRange]) -> list[ByteRange]:
    joined: list[ByteRange] = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].end:
            joined[-1] = ByteRange(joined[-1].start, max(joined[-1].end, span.end))
        elif span.size_bytes:
            joined.append(span)
    return joined
