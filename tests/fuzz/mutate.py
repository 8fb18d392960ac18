"""A small mutator, for where atheris is not installed: what a seed fixes, a run repeats."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_NUMBERS: Final = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_LONG: Final = (1 << 33, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_PACKINGS: Final = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")
SIZE_MAX: Final = 1 << 16
"""Bytes of an input: what breaks a reader fits, and each try is short."""


def _flip(data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _byte(data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] = source.randrange(256)


def _number(data: bytearray, source: random.Random) -> None:
    packing = source.choice(_PACKINGS)
    size = struct.calcsize(packing)
    value = source.choice(_NUMBERS if size < 8 else _NUMBERS + _LONG) + source.choice((0, 0, 1, -1))
    at = source.randrange(len(data))
    data[at : at + size] = struct.pack(packing, value % (1 << 8 * size))


def _digits(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data))
    data[at : at + 1] = str(source.choice(_NUMBERS + _LONG)).encode()


def _delete(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data))
    del data[at : at + source.choice((1, 2, 4, 8, source.randrange(1, 600)))]


def _insert(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data) + 1)
    data[at:at] = source.randbytes(source.choice((1, 2, 4, 8, 512)))


def _repeat(data: bytearray, source: random.Random) -> None:
    start = source.randrange(len(data))
    piece = data[start : start + source.randrange(1, 1025)]
    at = source.randrange(len(data) + 1)
    data[at:at] = piece * source.choice((1, 1, 2, 30))


def _move(data: bytearray, source: random.Random) -> None:
    start, at = source.randrange(len(data)), source.randrange(len(data))
    piece = data[start : start + source.choice((1, 2, 4, 8, 16, 512))]
    data[at : at + len(piece)] = piece


def _cut(data: bytearray, source: random.Random) -> None:
    del data[source.randrange(len(data)) :]


_WAYS: Final[Sequence[Callable[[bytearray, random.Random], None]]] = (
    *(_flip, _flip, _byte, _byte, _number, _number, _number),
    *(_digits, _delete, _insert, _repeat, _move, _cut),
)


def mutated(seeds: Sequence[bytes], source: random.Random) -> bytes:
    """Return one of ``seeds`` with one to eight changes; seldom the head of one and the tail of another."""
    data = bytearray(source.choice(seeds))
    if source.random() < 0.1:
        other = source.choice(seeds)
        data = data[: source.randrange(len(data) + 1)] + other[source.randrange(len(other) + 1) :]
    for _ in range(source.choice((1, 1, 1, 2, 3, 4, 8))):
        if data:
            source.choice(_WAYS)(data, source)
    return bytes(data[:SIZE_MAX])
