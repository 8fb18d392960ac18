"""Numbers as TensorFlow's examples have them: varints, and the feature lists of a SequenceExample.

A varint has seven bits of the number in each byte, lowest first. Bytes with the eighth bit set have another behind.
A FeatureList is repeated Feature, each a list of bytes, floats or integers: the values of one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.errors import BadSample
from feedd.formats.protobuf import MessageReader, NotAMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from feedd.recipe.params import Params
    from feedd.values import TensorSpec

_VARINT_BYTES_MAX: Final = 10  # of one number: 64 bits, seven at a time
_KINDS: Final = {1: "bytes", 2: "float32", 3: "varint"}


class ProtobufValuesCodec:
    """``array``, ``tensor`` and ``tokens`` over lists of numbers.

    Args:
        params: of the field.
        read: returns the numbers of a sample, of one dimension, or raises BadSample.
        count: returns how many numbers ``read`` returns, where that is cheaper to know.
    """

    def __init__(
        self,
        params: Params,
        read: Callable[[memoryview], NDArray[Any]],
        count: Callable[[memoryview], int] | None = None,
    ) -> None:
        self._params, self._read = params, read
        self._count = count or (lambda data: len(read(data)))

    def spec(self, name: str) -> TensorSpec:
        """RAGGED, or what the recipe says."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return how many numbers there are, in one tuple.

        Raises:
            BadSample: the numbers of a feature list cannot be read.
        """
        return (self._count(data),)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the numbers into ``out``.

        Raises:
            BadSample: they cannot be read, are not as many as ``out`` has, or do not fit its dtype.
        """
        values = self._read(data)
        if len(values) != out.size:
            raise BadSample(f"expected {out.size} numbers for {out.dtype}{list(out.shape)}, got {len(values)}")
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is told below
            fitting = values.astype(out.dtype)
        if not np.array_equal(fitting.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
            raise BadSample(f"expected numbers that fit {out.dtype}, got {values.min()} to {values.max()}")
        out[...] = fitting.reshape(out.shape)


def count_varints(data: memoryview) -> int:
    """Return how many numbers end in ``data``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x80))


def read_varints(data: memoryview) -> NDArray[np.int64]:
    """Return the numbers, int64[n], in two's complement as protobuf has its int64.

    Raises:
        BadSample: the last one has no end, or one is too long.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.zeros(0, np.int64)
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        raise BadSample(f"expected whole varints, got {len(raw)} bytes whose last one goes on")
    first = np.concatenate(([0], last[:-1] + 1))
    lengths = last - first + 1
    if lengths.max() > _VARINT_BYTES_MAX:
        raise BadSample(f"expected varints of at most {_VARINT_BYTES_MAX} bytes, got {int(lengths.max())}")
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(lengths.max())):
        there = lengths > place
        numbers[there] |= (raw[first[there] + place] & np.uint64(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return numbers.view(np.int64)


def read_varint(data: memoryview) -> np.int64:
    """Return the only number.

    Raises:
        BadSample: none, more than one, or as ``read_varints``.
    """
    numbers = read_varints(data)
    if len(numbers) != 1:
        raise BadSample(f"expected one number, got {len(numbers)}")
    number: np.int64 = numbers[0]
    return number


def steps_reader(wanted: str) -> Callable[[memoryview], NDArray[Any]]:
    """Return a function that returns the values of all steps of a feature list, one after another.

    That raises BadSample if the bytes are no feature list, or one whose steps have values of another kind.

    Args:
        wanted: ``float32``, ``varint`` or ``bytes``; ``lengths`` returns how many values each step has instead.
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
            raise BadSample("expected floats of 4 bytes, got others")
        return np.frombuffer(b"".join(parts), "<f4" if wanted == "float32" else np.uint8)

    return read


def _steps(data: memoryview) -> Iterator[tuple[str, list[memoryview]]]:
    """Yield kind and values of each step; a step without values has no kind."""
    reader = MessageReader(data, "")
    for step in reader.messages(0, len(data), 1):
        number, low, high = [(0, 0, 0), *reader.fields(*step)][-1]  # the last one counts, as protobuf has it
        if number and number not in _KINDS:
            raise NotAMessage(f"a feature of kind {number}")
        yield _KINDS.get(number, ""), [data[start:end] for start, end in reader.values(low, high, 1)]


def _lengths(kind: str, parts: list[memoryview]) -> list[int]:
    if kind == "bytes":
        return [len(part) for part in parts]
    if kind == "varint":
        return [sum(len(read_varints(part)) for part in parts)]
    return [sum(map(len, parts)) // 4]
