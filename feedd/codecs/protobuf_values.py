"""Reads numbers of TensorFlow examples: varints, and the feature lists of a SequenceExample.

A varint has seven bits of the number in each byte, lowest first. If a byte has its eighth bit set, another byte
follows. A FeatureList is a repeated Feature. Each Feature is a list of bytes, floats or integers: the values of one
step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.errors import BadSample
from feedd.formats.protobuf import MessageReader, NotAMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_VARINT_BYTES_MAX: Final = 10  # bytes of one number: 64 bits, seven per byte
_KINDS: Final = {1: "bytes", 2: "float32", 3: "varint"}


def count_varints(data: memoryview) -> int:
    """Return the count of numbers that end in ``data``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x80))


def read_varints(data: memoryview) -> NDArray[np.int64]:
    """Return the numbers, int64[n], in two's complement like protobuf's int64.

    Raises:
        BadSample: the last varint is cut short, or one is too long.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.zeros(0, np.int64)
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        raise BadSample(f"expected whole varints, got {len(raw)} bytes that end within one")
    first = np.concatenate(([0], last[:-1] + 1))
    lengths = last - first + 1
    if lengths.max() > _VARINT_BYTES_MAX:
        raise BadSample(f"expected varints of at most {_VARINT_BYTES_MAX} bytes, got {int(lengths.max())}")
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(lengths.max())):
        there = lengths > place
        numbers[there] |= (raw[first[there] + place] & np.uint64(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return numbers.view(np.int64)


def steps_reader(wanted: str) -> Callable[[memoryview], NDArray[Any]]:
    """Return a function that returns the values of all steps of a feature list, one after another.

    The function raises BadSample if the bytes are not a feature list, or if a step has values of another kind.

    Args:
        wanted: ``float32``, ``varint`` or ``bytes``; ``lengths`` returns the value count of each step instead.
    """

    def read(data: memoryview) -> NDArray[Any]:
        try:
            steps = list(_steps(data))
        except NotAMessage as error:
            raise BadSample(f"expected a feature list, got {error}") from error
        if wanted == "lengths":
            return np.array([length for kind, parts in steps for length in _lengths(kind, parts)], np.int64)
        other = next((kind for kind, _ in steps if kind not in {wanted, ""}), None)
        if other is not None:
            raise BadSample(f"expected steps of {wanted}, got one of {other}")
        parts = [part for _, step in steps for part in step]
        if wanted == "varint":
            return read_varints(memoryview(b"".join(parts)))
        if wanted == "float32" and any(len(part) % 4 for part in parts):
            raise BadSample("expected floats of 4 bytes, got values of another length")
        return np.frombuffer(b"".join(parts), "<f4" if wanted == "float32" else np.uint8)

    return read


def _steps(data: memoryview) -> Iterator[tuple[str, list[memoryview]]]:
    """Yield kind and values of each step; a step without values has no kind."""
    reader = MessageReader(data, "")
    for step in reader.messages(0, len(data), 1):
        number, low, high = [(0, 0, 0), *reader.fields(*step)][-1]  # the last field counts, as in protobuf
        if number and number not in _KINDS:
            raise NotAMessage(f"a feature of kind {number}")
        yield _KINDS.get(number, ""), [data[start:end] for start, end in reader.values(low, high, 1)]


def _lengths(kind: str, parts: list[memoryview]) -> list[int]:
    if kind == "bytes":
        return [len(part) for part in parts]
    if kind == "varint":
        return [sum(len(read_varints(part)) for part in parts)]
    return [sum(map(len, parts)) // 4]
