"""One suite for every store and wrapper: what an ObjectStore must do. Modules bring their own ``bed``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.checksums import ALGORITHMS, Verification
from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress
from tests.fakes.sinks import into

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ObjectStore

NAMES = ["a.tar", "a/b.tar", "a/c d+e%2F.tar", "ab", "z\U0001f600", "ä/ü.tar"]
MANY = 2100  # three pages
ODD_NAMES = ("a\nb", "a/../b", "./c", "d//e", "%41", " lead", "q?x=1#y&z", "tab\tx")


@dataclass(frozen=True)
class Bed:
    """A store under test, and the back door to its objects.

    ``at`` turns a name into a key; ``odd_names`` are keys that the back door can make.
    ``put_kept`` stores an object with a checksum of that algorithm, and of those parts where there are any;
    None where the store keeps no checksums. ``tells_progress``: reads keep their ``ReadProgress`` up to date.
    """

    store: ObjectStore
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    at: Callable[[str], str] = str
    odd_names: tuple[str, ...] = ODD_NAMES
    put_kept: Callable[[str, bytes, str, tuple[int, ...]], object] | None = None
    tells_progress: bool = False


async def collect(store: ObjectStore, prefix: str, start_after: str = "") -> list[ObjectRef]:
    """List to the end."""
    return [ref async for page in store.list(prefix, start_after) for ref in page]


async def read(store: ObjectStore, ref: ObjectRef, start: int, end: int) -> bytes:
    """Read into the middle of a larger buffer, and check that its edges stay untouched."""
    buffer = bytearray(b"\xee" * (end - start + 16))
    await store.read_into(ref, ByteRange(start, end), into(memoryview(buffer)[8 : 8 + end - start]))
    assert buffer[:8] == buffer[-8:] == b"\xee" * 8
    return bytes(buffer[8:-8])


async def test_list_is_in_byte_order_with_whole_refs(bed: Bed) -> None:
    """All keys come, verbatim, in UTF-8 byte order, with root, size and an etag."""
    for name in reversed(NAMES):
        bed.put(name, name.encode())
    refs = await collect(bed.store, bed.at(""))
    assert [ref.key for ref in refs] == sorted((bed.at(name) for name in NAMES), key=lambda key: key.encode())
    assert {ref.root for ref in refs} == {bed.store.root}
    assert [ref.size_bytes for ref in refs if ref.key == bed.at("ab")] == [2]
    assert all(ref.etag and '"' not in ref.etag for ref in refs)


async def test_prefix_is_plain_text(bed: Bed) -> None:
    """A prefix matches letter by letter, across the slash."""
    for name in NAMES:
        bed.put(name, b"x")
    refs = await collect(bed.store, bed.at("a"))
    assert [ref.key for ref in refs] == [bed.at(name) for name in NAMES[:4]]
    assert [ref.key for ref in await collect(bed.store, bed.at("a/b"))] == [bed.at("a/b.tar")]


async def test_prefix_that_matches_nothing_is_empty(bed: Bed) -> None:
    """No match in a bucket that exists is an empty listing, not an error."""
    bed.put("a", b"x")
    assert await collect(bed.store, bed.at("nothing")) == []


async def test_list_goes_on_after_a_key(bed: Bed) -> None:
    """``start_after`` leaves out that key and all before it, whether or not it exists."""
    for name in NAMES:
        bed.put(name, b"x")
    assert [ref.key for ref in await collect(bed.store, bed.at(""), bed.at("a/b.tar"))] == [
        bed.at(name) for name in NAMES[2:]
    ]
    assert [ref.key for ref in await collect(bed.store, bed.at("a"), bed.at("a/b.zzz"))] == [
        bed.at(name) for name in NAMES[2:4]
    ]


async def test_odd_keys_survive(bed: Bed) -> None:
    """Newlines, dots, double slashes and percent signs in keys come back as they are, and can be read."""
    for name in bed.odd_names:
        bed.put(name, name.encode())
    refs = await collect(bed.store, bed.at(""))
    assert [ref.key for ref in refs] == sorted(bed.at(name) for name in bed.odd_names)
    for ref in refs:
        assert bed.at((await read(bed.store, ref, 0, ref.size_bytes)).decode()) == ref.key


async def test_folder_markers_are_left_out(marker_bed: Bed) -> None:
    """Zero-byte keys that end in a slash are no objects; other empty objects are."""
    bed = marker_bed
    bed.put("d/", b"")
    bed.put("d/empty", b"")
    bed.put("e/", b"not empty")
    assert [ref.key for ref in await collect(bed.store, "")] == ["d/empty", "e/"]


async def test_pages_hold_at_most_a_thousand(bed: Bed) -> None:
    """A long listing comes in pages of 1..1000 refs that together are complete."""
    names = [f"k{index:05d}" for index in range(MANY)]
    for name in names:
        bed.put(name, b"x")
    pages = [page async for page in bed.store.list(bed.at("k"))]
    assert all(1 <= len(page) <= 1000 for page in pages)
    assert [ref.key for page in pages for ref in page] == [bed.at(name) for name in names]


async def test_listing_may_be_left_early(bed: Bed) -> None:
    """A listing closed after its first page leaves nothing behind, and the store works on."""
    for index in range(MANY):
        bed.put(f"k{index:05d}", b"x")
    before = {thread.name for thread in threading.enumerate() if "list" in thread.name}
    pages = bed.store.list(bed.at("k"))
    assert await anext(pages)
    close = getattr(pages, "aclose", None)
    assert close is not None
    await close()
    assert {thread.name for thread in threading.enumerate() if "list" in thread.name} == before
    assert (await bed.store.head(bed.at("k00000"))).size_bytes == 1


async def test_head_agrees_with_list(bed: Bed) -> None:
    """Both ways to learn of an object give the same ref."""
    bed.put("x", b"12345")
    assert [await bed.store.head(bed.at("x"))] == await collect(bed.store, bed.at("x"))


async def test_head_of_missing_key(bed: Bed) -> None:
    """A key that is not there is NotFound, with its name and a hint."""
    bed.put("there", b"x")
    with pytest.raises(NotFound) as caught:
        await bed.store.head(bed.at("missing"))
    assert bed.at("missing") in caught.value.object
    assert caught.value.stage == "source"


@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 1), (9, 10), (3, 7), (0, 0), (10, 10)])
async def test_read_into_fills_exactly_the_range(bed: Bed, start: int, end: int) -> None:
    """Any range, empty ones too, arrives exactly, and nothing beside the target is touched."""
    data = b"0123456789"
    bed.put("x", data)
    assert await read(bed.store, await bed.store.head(bed.at("x")), start, end) == data[start:end]


async def test_large_read_is_exact(bed: Bed) -> None:
    """Ranges of many network buffers arrive whole, several at a time."""
    data = bytes(range(251)) * 20_000
    bed.put("x", data)
    ref = await bed.store.head(bed.at("x"))
    spans = [(0, len(data)), (1, len(data) - 1), (1_000_000, 3_000_000), (len(data) - 70_001, len(data))]
    found = await asyncio.gather(*(read(bed.store, ref, *span) for span in spans))
    assert found == [data[start:end] for start, end in spans]


async def test_replaced_object_is_refused(bed: Bed) -> None:
    """A range of a version that is no longer there is ObjectChanged, never a mix."""
    bed.put("x", b"old old")
    ref = await bed.store.head(bed.at("x"))
    bed.put("x", b"new new")
    with pytest.raises(ObjectChanged, match=ref.etag):
        await read(bed.store, ref, 0, 3)


async def test_deleted_object_is_not_found(bed: Bed) -> None:
    """A range of an object that was deleted since it was listed is NotFound."""
    bed.put("other", b"x")
    bed.put("x", b"12345")
    ref = await bed.store.head(bed.at("x"))
    bed.delete("x")
    with pytest.raises(NotFound):
        await read(bed.store, ref, 0, 3)


async def condemned(ref: ObjectRef, found: ObjectChecksum, data: bytes) -> tuple[ByteRange, ...]:
    """Return what of ``data`` is not as the store says."""
    return await Verification(ref, found).finish(into(data))


async def test_checksum_is_none_or_true(bed: Bed) -> None:
    """Of any object, empty ones too, a store tells nothing or the checksum of exactly its bytes."""
    for data in (b"", b"x", bytes(range(256)) * 50):
        bed.put("x", data)
        ref = await bed.store.head(bed.at("x"))
        found = await bed.store.checksum(ref)
        assert found is None or await condemned(ref, found, data) == ()


@pytest.mark.parametrize("sizes", [(), (5000, 5000, 2800), (12_800,)], ids=["full", "composite", "one part"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_checksum_that_is_kept_is_told(keeping_bed: Bed, algorithm: str, sizes: tuple[int, ...]) -> None:
    """A checksum that the store keeps comes with algorithm and parts, and finds one flipped bit in its part."""
    bed = keeping_bed
    assert bed.put_kept is not None
    data = bytes(range(256)) * 50
    bed.put_kept("a b", data, algorithm, sizes)
    ref = await bed.store.head(bed.at("a b"))
    found = await bed.store.checksum(ref)
    assert found is not None
    assert (found.algorithm, found.part_sizes, len(found.part_digests)) == (algorithm, sizes, len(sizes))
    assert await condemned(ref, found, data) == ()
    flipped = data[:6000] + bytes([data[6000] ^ 4]) + data[6001:]
    expected = ByteRange(5000, 10_000) if len(sizes) == 3 else ByteRange(0, len(data))
    assert await condemned(ref, found, flipped) == (expected,)


async def test_checksum_is_of_that_version(bed: Bed) -> None:
    """Nobody is told the checksum of a version that is no longer there, nor of an object that is gone."""

    def put(name: str, data: bytes) -> None:
        if bed.put_kept is None:
            bed.put(name, data)
        else:
            bed.put_kept(name, data, "crc32c", ())

    bed.put("other", b"x")
    put("x", b"old old")
    ref = await bed.store.head(bed.at("x"))
    put("x", b"new new")
    with contextlib.suppress(ObjectChanged):
        assert await bed.store.checksum(ref) is None
        assert bed.put_kept is None
    bed.delete("x")
    with contextlib.suppress(NotFound):
        assert await bed.store.checksum(ref) is None
        assert bed.put_kept is None


async def test_progress_is_truthful(bed: Bed) -> None:
    """What is reported as filled is the object's at every moment, never shrinks, and is all of it after a success."""
    data = bytes(range(251)) * 20_000
    bed.put("x", data)
    ref = await bed.store.head(bed.at("x"))
    span, progress = ByteRange(10, len(data) - 10), ReadProgress()
    target = bytearray(span.size_bytes)
    reading = asyncio.ensure_future(bed.store.read_into(ref, span, into(target), progress))
    seen = [0]
    while not reading.done():
        seen.append(progress.filled_bytes)
        assert target[seen[-2] : seen[-1]] == data[10 + seen[-2] : 10 + seen[-1]]
        await asyncio.sleep(0)
    await reading
    seen.append(progress.filled_bytes)
    assert seen == sorted(seen)
    assert target == data[10:-10]
    assert progress.filled_bytes in ({span.size_bytes} if bed.tells_progress else {0, span.size_bytes})
    if bed.tells_progress:
        assert progress.first_byte_s is not None
        assert progress.answered_by


async def test_cancelled_read_holds_nothing(bed: Bed) -> None:
    """After a cancelled read the target may be released at once, and the store works on."""
    data = bytes(8_000_000)
    bed.put("x", data)
    ref = await bed.store.head(bed.at("x"))
    for turns in (0, 1, 3, 10, 30):
        buffer = bytearray(len(data))
        view = memoryview(buffer)
        task = asyncio.ensure_future(bed.store.read_into(ref, ByteRange(0, len(data)), into(view)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        view.release()
        buffer.clear()  # raises BufferError while anything still holds the memory
    assert await read(bed.store, ref, 5, 9) == data[5:9]


async def test_close_twice(bed: Bed) -> None:
    """Closing is idempotent, and a store's repr names its root."""
    assert bed.store.root in repr(bed.store)
    await bed.store.close()
    await bed.store.close()
