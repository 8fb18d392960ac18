"""The codecs ``int`` and ``float`` for numbers in text, where white space around is allowed, and for binary numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.codecs.transforms.numbers import of_number
from feedd.errors import BadSample

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.recipe.encodings import Encoding
    from feedd.recipe.params import FloatParams, IntParams
    from feedd.values import TensorSpec

_DIGITS_MAX: Final = 64
_BLANKS_MAX: Final = 64
_INT64: Final = 1 << 63


class NumberCodec:
    """Codec of ``int`` and ``float``, with their transforms.

    Args:
        params: the field's parameters.
        read: returns the number of a sample, or raises BadSample.
    """

    def __init__(self, params: IntParams | FloatParams, read: Callable[[memoryview], float | np.generic]) -> None:
        self._params, self._read = params, read
        self._shape = params.spec("").shape
        self._dtype = np.dtype(params.own_dtype)

    @property
    def read_text(self) -> Callable[[bytes], float] | None:
        """The function that reads a number from short text; None: numbers are not text, or have transforms."""
        if self._params.transforms:
            return None
        return next((read for read in (read_int, read_float) if read is self._read), None)

    def spec(self, name: str) -> TensorSpec:
        """DENSE: a scalar, or the result of the transforms."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:  # noqa: ARG002 - the seam's name
        """Return the shape that the recipe states."""
        return self._shape

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the number, or the result of its transforms, into ``out``.

        Raises:
            BadSample: not a number, beyond 64 bits, or not valid for a transform.
        """
        value = self._read(data)
        number = np.empty((), self._dtype) if self._params.transforms else out
        if self._dtype.kind == "i":
            number[()] = value
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # numbers beyond float32 become infinity, as IEEE rounds
                number[()] = value
        if self._params.transforms:
            out[...] = of_number(number, self._params.transforms)


def read_int(data: memoryview | bytes) -> int:
    """Return the integer in a text.

    Raises:
        BadSample: not an integer, or beyond int64.
    """
    text = _digits(data)
    try:
        value = int(text)
    except ValueError as error:
        what = ': for words, use "str", or "classes" to number them' if text[:1].isalpha() else ""
        raise BadSample(f"expected an integer, got {text[:24]!r}{what}") from error
    if not -_INT64 <= value < _INT64:
        raise BadSample(f"expected an integer of 64 bits, got {value}")
    return value


def read_float(data: memoryview | bytes) -> float:
    """Return the number in a text.

    Raises:
        BadSample: not a number.
    """
    text = _digits(data)
    try:
        return float(text)
    except ValueError as error:
        raise BadSample(f"expected a number, got {text[:24]!r}") from error


def _digits(data: memoryview | bytes) -> bytes:
    text = data if isinstance(data, bytes) else bytes(data[: _DIGITS_MAX + 1])
    # Python reads 1_000 as a number, but no dataset means that.
    if len(text) > _DIGITS_MAX or b"_" in text or not text.isascii():
        raise BadSample(f"expected an ASCII number of at most {_DIGITS_MAX} bytes, got {text[:24]!r}")
    return text


def class_reader(classes: tuple[str, ...]) -> Callable[[memoryview], int]:
    """Return a function that returns the index of a text in ``classes``, ignoring white space around the text.

    The function raises BadSample if the text is not in ``classes``.
    """
    places = {name.encode(): place for place, name in enumerate(classes)}
    bytes_max = max(map(len, places)) + _BLANKS_MAX

    def read(data: memoryview) -> int:
        place = places.get(bytes(data).strip()) if len(data) <= bytes_max else None
        if place is None:
            raise BadSample(f"expected one of the {len(places)} classes, got {bytes(data[:_DIGITS_MAX])!r}")
        return place

    return read


def binary_reader(params: IntParams | FloatParams, encoding: Encoding) -> Callable[[memoryview], np.generic]:
    """Return a function that reads a little-endian binary number.

    The function raises BadSample if the length differs from the encoding's, or if an integer exceeds int64.
    """
    dtype = np.dtype(encoding.dtype).newbyteorder("<")
    checked = dtype.kind == "u" and params.own_dtype == "int64"

    def read(data: memoryview) -> np.generic:
        if len(data) != dtype.itemsize:
            raise BadSample(f"expected {dtype.itemsize} bytes of {dtype.name}, got {len(data)}")
        value: np.generic = np.frombuffer(data, dtype)[0]
        if checked and int(value) >= _INT64:
            raise BadSample(f"expected an integer of 64 bits, got {value}")
        return value

    return read


def only_number(read: Callable[[memoryview], NDArray[Any]]) -> Callable[[memoryview], np.generic]:
    """Return a function that returns the single number of a sample, which ``read`` reads.

    The function raises BadSample if the sample does not have exactly one number, or as ``read`` does.
    """

    def read_one(data: memoryview) -> np.generic:
        numbers = read(data)
        if len(numbers) != 1:
            raise BadSample(f"expected one number, got {len(numbers)}")
        number: np.generic = numbers[0]
        return number

    return read_one
