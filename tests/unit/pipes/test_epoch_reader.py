"""Objects arrive in order, within bounds, whatever the store does."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadSample, FeeddError, NotFound
from feedd.pipes.epoch_reader import EpochReader, Piece, ReadLimits, Wanted
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange


def _content(key: str, size: int) -> bytes:
    return (key.encode() * (size // max(len(key), 1) + 1))[:size]


class Stores:
    """A store whose answers wait for ``answer``.

    Attributes:
        sizes: of the objects.
        requests: keys in the order of their requests, ``HEAD key`` for those of HEAD.
        gates: what requests wait for.
    """

    root = "s3://b"

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.requests: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.fetcher: Any = self

    def store(self, root: str) -> Any:
        assert root == self.root
        return self

    def ref(self, key: str) -> ObjectRef:
        return ObjectRef(self.root, key, self.sizes[key], "tag")

    def hold(self, *keys: str) -> None:
        self.gates.update((key, asyncio.Event()) for key in keys)

    async def head(self, key: str) -> ObjectRef:
        self.requests.append(f"HEAD {key}")
        if key not in self.sizes:
            raise NotFound("expected an object, got none")
        await self._gate(f"HEAD {key}")
        return self.ref(key)

    async def fetch(self, ref: ObjectRef, sink: RangeSink) -> None:
        self.requests.append(ref.key)
        await self._gate(ref.key)
        if ref.key.startswith("bad"):
            raise NotFound("expected an object, got none")
        await sink.write(0, _content(ref.key, ref.size_bytes))

    async def fetch_spans(self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink) -> None:
        whole = [(span.start, span.end) for span in spans] == [(0, ref.size_bytes)]
        if whole:
            await self.fetch(ref, sink)
            return
        for span in spans:
            self.requests.append(f"{ref.key} {span.start}-{span.end}")
            await sink.part(span.start, span.end).write(0, _content(ref.key, ref.size_bytes)[span.start : span.end])

    async def _gate(self, key: str) -> None:
        if key in self.gates:
            await self.gates[key].wait()


@asynccontextmanager
async def reading(
    stores: Stores, wanted: Iterable[Wanted], size_bytes: int = 1 << 20, piece_count: int = 8
) -> AsyncIterator[EpochReader]:
    """Open a reader; at the end it holds nothing."""
    async with asyncio.TaskGroup() as group:
        reader = EpochReader(wanted, stores, ReadLimits(size_bytes, piece_count), group)
        try:
            yield reader
        finally:
            await reader.close()


def _bytes(piece: Piece) -> bytes:
    if piece.file is None:
        return bytes(piece.memory)
    return os.pread(piece.file.fd, piece.size_bytes, 0)


async def _all(reader: EpochReader) -> list[bytes]:
    found = []
    while (piece := await reader.next()) is not None:
        found.append(_bytes(piece))
        piece.release()
    return found


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_pieces_in_order() -> None:
    """Objects in memory, in files, in several pieces, empty ones and values; first and last pieces say so."""
    stores = Stores(a=10, empty=0, file=300_000, large=900_000, b=5)
    wanted = [Wanted(ref=stores.ref(key)) for key in stores.sizes]
    wanted.insert(1, Wanted("s3://b/manifest line 1", data=b"value"))
    wanted.insert(1, Wanted("s3://b/a"))  # looked up first
    async with reading(stores, wanted, 1_600_000) as reader:
        pieces: list[tuple[str, bool, bool]] = []
        content: list[bytes] = []
        while (piece := await reader.next()) is not None:
            content.append(_bytes(piece))
            pieces.append((piece.url, piece.is_first, piece.is_last))
            assert piece.object_bytes >= piece.size_bytes
            piece.release()
    whole = b"".join(content)
    sizes = {"a": 10, "empty": 0, "file": 300_000, "large": 900_000, "b": 5}
    first = _content("a", 10)
    expected = first + first + b"value" + b"".join(_content(key, sizes[key]) for key in list(sizes)[1:])
    assert whole == expected
    assert [one[1:] for one in pieces[:5]] == [(True, True)] * 5
    assert [one[1:] for one in pieces[5:]] == [(True, False), (False, False), (False, True), (True, True)]


async def test_the_bytes_in_advance_are_bounded() -> None:
    """Nothing beyond the budget is requested before the consumer takes bytes, however fast the store is."""
    stores = Stores(**{f"k{number}": 100 for number in range(20)})
    async with reading(stores, [Wanted(ref=stores.ref(key)) for key in stores.sizes], 400, 100) as reader:
        await _settled()
        assert stores.requests == ["k0", "k1", "k2", "k3"]
        piece = await reader.next()
        assert piece is not None
        await _settled()
        assert len(stores.requests) == 4
        piece.release()
        await _settled()
        assert len(stores.requests) == 5


async def test_the_pieces_in_advance_are_bounded() -> None:
    """Small ones cost more than their bytes; the epoch is fed when the last request has begun."""
    stores = Stores(**{f"k{number}": 1 for number in range(9)})
    async with reading(stores, [Wanted(ref=stores.ref(key)) for key in stores.sizes], 1 << 20, 4) as reader:
        await _settled()
        assert len(stores.requests) == 4
        assert not reader.fed.is_set()
        assert await _all(reader) == [b"k"] * 9
        assert reader.fed.is_set()


async def test_a_slow_object_does_not_block_itself() -> None:
    """While the first object's lookup is slow, later ones may not take all of the budget."""
    stores = Stores(**{f"k{number}": 100 for number in range(20)})
    stores.hold("HEAD k0", "k1")
    async with reading(stores, [Wanted(f"s3://b/{key}") for key in stores.sizes], 400, 100) as reader:
        await _settled()
        assert stores.requests[:3] == ["HEAD k0", "HEAD k1", "HEAD k2"]  # lookups do not wait for one another
        stores.gates["HEAD k0"].set()
        await _settled()
        stores.gates["k1"].set()
        assert await asyncio.wait_for(_all(reader), 5) == [_content(key, 100) for key in stores.sizes]


async def test_an_error_comes_in_its_turn() -> None:
    """Objects before the failing one are delivered; the error names it."""
    stores = Stores(a=5, bad=5, b=5)
    async with reading(stores, [Wanted(ref=stores.ref(key)) for key in stores.sizes]) as reader:
        piece = await reader.next()
        assert piece is not None
        piece.release()
        with pytest.raises(NotFound) as caught:
            await reader.next()
        assert caught.value.object == "s3://b/bad"


@pytest.mark.parametrize("kind", ["lookup", "line", "url"])
async def test_errors_of_lookups_and_lines(kind: str) -> None:
    """An object that is not there, a URL that is none, and a list that breaks off."""
    stores = Stores(a=5)

    def wanted() -> Iterator[Wanted]:
        yield Wanted("s3://b/a")
        if kind == "line":
            raise BadSample("broken", object="s3://b/manifest line 2")
        yield Wanted("s3://b/none" if kind == "lookup" else "ftp://b/none")
        yield Wanted("s3://b/a")

    objects = {"lookup": "s3://b/none", "line": "s3://b/manifest line 2", "url": "ftp://b/none"}
    async with reading(stores, wanted()) as reader:
        piece = await reader.next()
        assert piece is not None
        piece.release()
        with pytest.raises(FeeddError) as caught:
            await reader.next()
        assert caught.value.object == objects[kind]


async def test_closed_in_the_middle() -> None:
    """Requests are cancelled, and nothing is left in flight."""
    stores = Stores(a=5, b=200_000, c=5)
    stores.hold("b")
    async with reading(stores, [Wanted(ref=stores.ref(key)) for key in stores.sizes]) as reader:
        await _settled()
        assert stores.requests == ["a", "b", "c"]
        await reader.close()
        await reader.close()
