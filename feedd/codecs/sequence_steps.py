"""``array`` over a feature list of a SequenceExample: the values of all steps, one after another.

The field is a FeatureList as it lies in the record: repeated Feature, each a list of bytes, floats or integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.codecs.varint import unpack_varints
from feedd.errors import BadSample
from feedd.formats.protobuf import MessageReader, NotAMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from feedd.recipe.encodings import Encoding
    from feedd.recipe.params import Params
    from feedd.values import TensorSpec

_KINDS: Final = {1: "bytes", 2: "float32", 3: "varint"}


class StepsCodec:
    """Values of all steps, or how many there are in each.

    Args:
        params: of the field.
        stored: ``float32[][]``, ``varint[][]``, ``bytes[][]`` or ``lengths[][]``.
    """

    def __init__(self, params: Params, stored: Encoding) -> None:
        self._params = params
        self._of = stored.steps

    def spec(self, name: str) -> TensorSpec:
        """RAGGED, or what the recipe says."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return how many values there are, in one tuple.

        Raises:
            BadSample: no feature list, or one of another kind.
        """
        return (len(self._values(data)),)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the values into ``out``.

        Raises:
            BadSample: no feature list, one of another kind, or of another number of values than ``out`` has.
        """
        values = self._values(data)
        if len(values) != out.size:
            raise BadSample(f"expected {out.size} numbers for {out.dtype}{list(out.shape)}, got {len(values)}")
        fitting = values.astype(out.dtype)
        if not np.array_equal(fitting.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
            raise BadSample(f"expected numbers that fit {out.dtype}, got {values.min()} to {values.max()}")
        out[...] = fitting.reshape(out.shape)

    def _values(self, data: memoryview) -> NDArray[Any]:
        try:
            steps = list(_steps(data))
        except NotAMessage as error:
            raise BadSample(f"expected a feature list, got {error}") from error
        if self._of == "lengths":
            return np.array([length for kind, parts in steps for length in _lengths(kind, parts)], np.int64)
        other = next((kind for kind, _ in steps if kind not in {self._of, ""}), None)
        if other is not None:
            raise BadSample(f"expected steps of {self._of}, got one of {other}")
        parts = [part for _, step in steps for part in step]
        if self._of == "bytes":
            return np.frombuffer(b"".join(parts), np.uint8)
        if self._of == "varint":
            return unpack_varints(memoryview(b"".join(parts)))
        if any(len(part) % 4 for part in parts):
            raise BadSample("expected floats of 4 bytes, got others")
        return np.frombuffer(b"".join(parts), "<f4")


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
        return [sum(len(unpack_varints(part)) for part in parts)]
    return [sum(map(len, parts)) // 4]
