"""Whole-object checksums from parts in any order, against slow references."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.fetch.checksums import ALGORITHMS, Verification, digest_of
from feedd.values import ByteRange, ObjectChecksum, ObjectRef
from tests.budget import budget
from tests.fakes.sinks import into

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

# reflected polynomial and width, from the catalogue of CRC algorithms; all start with and are xored with ones
_POLYNOMIALS = {"crc32": (0xEDB88320, 32), "crc32c": (0x82F63B78, 32), "crc64nvme": (0x9A6C9329AC4BC9B5, 64)}
ALL = pytest.mark.parametrize("algorithm", ALGORITHMS)


def slow_digest(algorithm: str, data: bytes) -> bytes:
    """Bit by bit for the CRCs: shares nothing with what it checks."""
    if algorithm not in _POLYNOMIALS:
        return hashlib.new(algorithm, data).digest()
    polynomial, width = _POLYNOMIALS[algorithm]
    ones = (1 << width) - 1
    value = ones
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return (value ^ ones).to_bytes(width // 8, "big")


def ref_of(data: bytes | bytearray) -> ObjectRef:
    """An object that holds ``data``."""
    return ObjectRef("s3://b", "k", len(data), "etag")


def full(algorithm: str, data: bytes) -> ObjectChecksum:
    """What a store keeps of the full object."""
    return ObjectChecksum(algorithm, slow_digest(algorithm, data))


def composite(algorithm: str, parts: Sequence[bytes], *, told: bool = True) -> ObjectChecksum:
    """What a store keeps of an object uploaded in parts; ``told``: their digests too."""
    digests = tuple(slow_digest(algorithm, part) for part in parts)
    whole = slow_digest(algorithm, b"".join(digests))
    return ObjectChecksum(algorithm, whole, tuple(map(len, parts)), digests if told else ())


def feed(verification: Verification, data: bytes, spans: Sequence[ByteRange]) -> None:
    """Hand spans of ``data`` over."""
    for span in spans:
        verification.arrived(span, into(data).part(span.start, span.end))


def flip(data: bytes, bit: int) -> bytes:
    """Return ``data`` with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def cut(data: bytes, points: Sequence[int]) -> list[bytes]:
    """Cut at ``points``; pieces may be empty."""
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def spans_of(pieces: Sequence[bytes]) -> list[ByteRange]:
    """Where each piece lies."""
    edges = [0, *itertools.accumulate(map(len, pieces))]
    return [ByteRange(*pair) for pair in itertools.pairwise(edges)]


points_of = st.lists(st.integers(0, 1000), max_size=6)


@pytest.mark.parametrize(
    ("algorithm", "text", "digest"),
    [
        ("crc32", b"123456789", "y/Q5Jg=="),
        ("crc32c", b"123456789", "4waSgw=="),
        ("crc64nvme", b"123456789", "rosUhgp5mIg="),
        ("sha1", b"abc", "qZk+NkcGgWq6PiVxeFDCbJzQ2J0="),
        ("sha256", b"abc", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="),
        ("crc32", b"", "AAAAAA=="),
        ("crc64nvme", b"", "AAAAAAAAAAA="),
    ],
)
def test_published_vectors(algorithm: str, text: bytes, digest: str) -> None:
    """The published check values come out as S3 writes them: big-endian, base64; so do they from the references."""
    assert base64.b64encode(digest_of(algorithm, text)).decode() == digest
    assert base64.b64encode(slow_digest(algorithm, text)).decode() == digest


@ALL
@settings(deadline=None, max_examples=budget(80))
@given(data=st.binary(max_size=300), points=points_of, before=points_of, seed=st.randoms(use_true_random=False))
def test_any_split_in_any_order_is_good(
    algorithm: str, data: bytes, points: list[int], before: list[int], seed: random.Random
) -> None:
    """However an object is cut, in whatever order the spans come, over whatever came before, a good object is good."""
    verification = Verification(ref_of(data), full(algorithm, data))
    feed(verification, bytes(len(data)), spans_of(cut(data, before))[::2])  # of an attempt that was thrown away
    spans = spans_of(cut(data, points))
    seed.shuffle(spans)
    feed(verification, data, spans)
    assert asyncio.run(verification.finish(into(data))) == ()


@ALL
@settings(deadline=None, max_examples=budget(60))
@given(data=st.binary(min_size=1, max_size=300), points=points_of, seed=st.randoms(use_true_random=False))
def test_spans_that_never_came_are_digested_at_the_end(
    algorithm: str, data: bytes, points: list[int], seed: random.Random
) -> None:
    """What did not arrive here, but is in the target, counts as it lies there."""
    spans = [span for span in spans_of(cut(data, points)) if seed.random() < 0.5]
    verification = Verification(ref_of(data), full(algorithm, data))
    feed(verification, data, spans)
    assert asyncio.run(verification.finish(into(data))) == ()


@ALL
@settings(deadline=None, max_examples=budget(60))
@given(data=st.binary(min_size=1, max_size=300), points=points_of, bit=st.integers(0, 10_000))
def test_any_flipped_bit_is_found(algorithm: str, data: bytes, points: list[int], bit: int) -> None:
    """One bit, anywhere, condemns the whole object where the store keeps one checksum of it; refetched it is good."""
    spans = spans_of(cut(data, points))
    damaged = flip(data, bit % (8 * len(data)))
    verification = Verification(ref_of(data), full(algorithm, data))
    feed(verification, damaged, spans)
    assert asyncio.run(verification.finish(into(damaged))) == (ByteRange(0, len(data)),)
    assert algorithm in verification.describe()
    feed(verification, data, spans)
    assert asyncio.run(verification.finish(into(data))) == ()


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "crc64nvme"])
@settings(deadline=None, max_examples=budget(80))
@given(
    data=st.binary(min_size=1, max_size=300),
    stored=points_of,
    points=points_of,
    bits=st.lists(st.integers(0, 10_000), max_size=3),
)
def test_composite_condemns_only_its_parts(
    algorithm: str, data: bytes, stored: list[int], points: list[int], bits: list[int]
) -> None:
    """Of a composite checksum exactly the store's parts that differ are asked for, wherever our own spans lie."""
    parts = cut(data, stored)
    damaged = data
    for bit in bits:
        damaged = flip(damaged, bit % (8 * len(data)))
    bad = tuple(span for span in spans_of(parts) if damaged[span.start : span.end] != data[span.start : span.end])
    verification = Verification(ref_of(data), composite(algorithm, parts))
    feed(verification, damaged, spans_of(cut(data, points)))
    assert asyncio.run(verification.finish(into(damaged))) == bad
    feed(verification, data, bad)
    assert asyncio.run(verification.finish(into(data))) == ()


async def test_composite_without_part_digests_condemns_all() -> None:
    """Where the store does not tell the parts' digests, nobody knows which part is bad: all is fetched again."""
    data = bytes(range(100))
    verification = Verification(ref_of(data), composite("sha256", [data[:60], data[60:]], told=False))
    assert await verification.finish(into(flip(data, 700))) == (ByteRange(0, 100),)
    feed(verification, data, [ByteRange(0, 100)])
    assert await verification.finish(into(data)) == ()


async def test_parts_that_agree_under_a_digest_that_does_not() -> None:
    """A store that contradicts itself is not believed: the whole object is asked for."""
    data = bytes(range(100))
    good = composite("crc32", [data[:60], data[60:]])
    lying = ObjectChecksum(good.algorithm, bytes(4), good.part_sizes, good.part_digests)
    assert await Verification(ref_of(data), lying).finish(into(data)) == (ByteRange(0, 100),)


@ALL
async def test_description_names_both_digests(algorithm: str) -> None:
    """The message for people has algorithm, expected and got digest as S3 writes them, and the parts that differ."""
    data, other = b"a" * 50, b"a" * 49 + b"b"
    verification = Verification(ref_of(data), composite(algorithm, [data[:20], data[20:]]))
    await verification.finish(into(other))
    told = verification.describe()
    for parts in ([data[:20], data[20:]], [other[:20], other[20:]]):
        assert f"{base64.b64encode(composite(algorithm, parts).digest).decode()}-2" in told
    assert told.endswith("(parts that differ: 2)")


async def test_nothing_kept_is_good() -> None:
    """Where a store keeps nothing, there is nothing to object to."""
    verification = Verification(ref_of(b"abc"), None)
    verification.arrived(ByteRange(0, 3), into(b"xyz"))
    assert await verification.finish(into(b"xyz")) == ()
    assert verification.describe() == "no checksum stored"


@pytest.mark.parametrize("algorithm", ["crc32", "sha1", "sha256"])
async def test_cancelled_finish_lets_go_of_the_target(algorithm: str) -> None:
    """A finish cancelled while its thread digests returns when the thread has let go of the borrowed memory."""
    buffer = bytearray(64 << 20)
    view = memoryview(buffer)
    expected = ObjectChecksum(algorithm, bytes(4))
    task = asyncio.ensure_future(Verification(ref_of(buffer), expected).finish(into(view)))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    view.release()
    buffer.clear()  # raises BufferError while anything still holds the memory
