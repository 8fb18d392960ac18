"""``int`` and ``float``: ASCII numbers, surrounding white space allowed, or what the data stores as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.codecs.transforms.numbers import of_number
from feedd.codecs.varint import unpack_varints
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec
    from feedd.recipe.encodings import Encoding
    from feedd.recipe.params import FloatParams, IntParams
    from feedd.values import TensorSpec

_DIGITS_MAX: Final = 64
_BLANKS_MAX: Final = 64
_INT64: Final = 1 << 63


class _NumberCodec:
    def __init__(self, params: IntParams | FloatParams) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """DENSE scalar."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:  # noqa: ARG002 - the seam's name
        """Scalars have no dimensions."""
        return ()

    @staticmethod
    def _text(data: memoryview) -> bytes:
        return bytes(data[: _DIGITS_MAX + 1])


def _check_text(text: bytes) -> None:
    # Python reads 1_000 as a number; no data set means that.
    if len(text) > _DIGITS_MAX or b"_" in text or not text.isascii():
        raise BadSample(f"expected an ASCII number of at most {_DIGITS_MAX} bytes, got {text[:24]!r}")


class StoredNumberCodec(_NumberCodec):
    """``int`` and ``float`` over a number that is stored as one."""

    def __init__(self, params: IntParams | FloatParams, stored: Encoding) -> None:
        super().__init__(params)
        self._dtype = np.dtype(stored.dtype).newbyteorder("<")

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the number into ``out``.

        Raises:
            BadSample: another length, or an integer beyond 64 bits.
        """
        if len(data) != self._dtype.itemsize:
            raise BadSample(f"expected {self._dtype.itemsize} bytes of {self._dtype.name}, got {len(data)}")
        value = np.frombuffer(data, self._dtype)[0]
        if self._dtype.kind == "u" and out.dtype.kind == "i" and int(value) >= _INT64:
            raise BadSample(f"expected an integer of 64 bits, got {value}")
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 it is infinity, as IEEE rounds
            out[()] = value


class VarintCodec(_NumberCodec):
    """``int`` and ``float`` over one number as protobuf packs it."""

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the number into ``out``.

        Raises:
            BadSample: none, or more than one.
        """
        numbers = unpack_varints(data)
        if len(numbers) != 1:
            raise BadSample(f"expected one number, got {len(numbers)}")
        out[()] = numbers[0]


class IntCodec(_NumberCodec):
    """``int``: int64."""

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the number into ``out`` (int64, no dimensions).

        Raises:
            BadSample: not an integer, or not within int64.
        """
        out[()] = self.value(self._text(data))

    def value(self, text: bytes) -> int:
        """Return the number.

        Raises:
            BadSample: not an integer, or not within int64.
        """
        _check_text(text)
        try:
            value = int(text)
        except ValueError as error:
            what = ': words are "str", or numbered by "classes"' if text[:1].isalpha() else ""
            raise BadSample(f"expected an integer, got {text[:24]!r}{what}") from error
        if not -_INT64 <= value < _INT64:
            raise BadSample(f"expected an integer of 64 bits, got {value}")
        return value


class ClassCodec(_NumberCodec):
    """``int`` of text: its place among the ``classes`` that the recipe names; white space around it is none of it."""

    def __init__(self, params: IntParams) -> None:
        super().__init__(params)
        self._places = {name.encode(): place for place, name in enumerate(params.classes)}
        self._bytes_max = max(map(len, self._places)) + _BLANKS_MAX

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the place into ``out`` (int64, no dimensions).

        Raises:
            BadSample: none of the classes.
        """
        place = self._places.get(bytes(data).strip()) if len(data) <= self._bytes_max else None
        if place is None:
            raise BadSample(f"expected one of the {len(self._places)} classes, got {bytes(data[:_DIGITS_MAX])!r}")
        out[()] = place


def int_codec(params: IntParams) -> SampleCodec:
    """Return what reads an integer, or a class, from text."""
    return ClassCodec(params) if params.classes else IntCodec(params)


class FloatCodec(_NumberCodec):
    """``float``: float32, or float64."""

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the number into ``out`` (no dimensions); overflow becomes infinity, as IEEE rounds.

        Raises:
            BadSample: not a number.
        """
        value = self.value(self._text(data))
        # float32's largest plus half a step; numpy would warn
        if out.dtype == np.float32 and abs(value) >= 3.4028235677973366e38:
            value *= float("inf")
        out[()] = value

    def value(self, text: bytes) -> float:
        """Return the number.

        Raises:
            BadSample: not a number.
        """
        _check_text(text)
        try:
            value = float(text)
        except ValueError as error:
            raise BadSample(f"expected a number, got {text[:24]!r}") from error
        return value


class TransformedNumberCodec(_NumberCodec):
    """``int`` and ``float`` with ``transforms``.

    Args:
        params: the recipe's.
        inner: reads the number itself.
    """

    def __init__(self, params: IntParams | FloatParams, inner: SampleCodec) -> None:
        super().__init__(params)
        self._inner = inner
        self._shape = params.spec("").shape

    def measure(self, data: memoryview) -> tuple[int, ...]:  # noqa: ARG002 - the seam's name
        """Return the shape the recipe says."""
        return self._shape

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Write what becomes of the number into ``out``.

        Raises:
            BadSample: not a number, or one that a transform cannot take.
        """
        value = np.empty((), self._params.own_dtype)
        self._inner.decode(data, value, seed)
        out[...] = of_number(value, self._params.transforms)
