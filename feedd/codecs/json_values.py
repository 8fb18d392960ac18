"""Codecs of values inside JSON documents (``key``): text, JSON, numbers, and arrays of numbers.

A document is read only along the path to the value; other members are skipped. If msgspec rejects a document (NaN, for
example), Python's own parser reads it as a whole.
"""

from __future__ import annotations

import functools
import json
import math
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from feedd.codecs.text import JsonCodec
from feedd.errors import BadSample
from feedd.recipe.key_params import key_text
from feedd.recipe.params import ArrayParams, TensorParams
from feedd.recipe.text_params import JsonParams, StrParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.recipe.key_params import Key
    from feedd.recipe.params import FloatParams, IntParams
    from feedd.values import TensorSpec

_INT64: Final = 1 << 63
_NAMES_MAX: Final = 20
_MISSING: Final = msgspec.Raw(b"")
_FAILURES: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_json: Final = JsonCodec(JsonParams())
_documents: Final = msgspec.json.Decoder(msgspec.Raw)
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _Document(Protocol):
    value: msgspec.Raw


class JsonPath:
    """The path to a value in a JSON document."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._text = key_text(key)

    def value(self, data: memoryview) -> object:
        """Return the value as a Python object.

        Raises:
            BadSample: not JSON, or the key is missing.
        """
        data = _unmarked(data)
        try:
            return msgspec.json.decode(self._raw(data))
        except _FAILURES:
            return self._slow(data)

    def json(self, data: memoryview) -> bytes:
        """Return the value as JSON text.

        Raises:
            BadSample: as ``value``.
        """
        data = _unmarked(data)
        try:
            raw = self._raw(data)
            msgspec.json.decode(raw)
            found = bytes(raw)
        except _FAILURES:
            found = json.dumps(self._slow(data)).encode()
        _json.check(memoryview(found))
        return found

    def text(self, data: memoryview) -> str:
        """Return the value, which must be text.

        Raises:
            BadSample: as ``value``, or the value is not text.
        """
        found = self.value(data)
        if not isinstance(found, str):
            raise self.another("text", found)
        return found

    def encoded(self, text: str) -> bytes:
        """Return text as UTF-8.

        Raises:
            BadSample: it has lone surrogates, which JSON allows.
        """
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise BadSample(f"expected valid text at the key {self._text}, got a lone surrogate") from error

    def another(self, expected: str, found: object) -> BadSample:
        """Return the error for a value of another type."""
        return BadSample(f"expected {expected} at the key {self._text}, got {_kind_of(found)}")

    def _raw(self, data: memoryview) -> msgspec.Raw:
        """Return the JSON of the value, or ``_MISSING``, which is invalid JSON, if there is none."""
        if not self._key:
            return _documents.decode(data)
        raw = _step(self._key[0], data)
        for step in self._key[1:]:
            if raw is _MISSING:
                break
            raw = _step(step, raw)
        return raw

    def _slow(self, data: memoryview) -> object:
        """Find the value with Python's own parser, or raise an error that says why it is missing."""
        _json.check(data)
        found = json.loads(str(data, "utf-8"))
        for step in self._key:
            if isinstance(step, str):
                if not isinstance(found, dict):
                    raise BadSample(f"expected an object that has the key {self._text}, got {_kind_of(found)}")
                if step not in found:
                    raise BadSample(f"expected the key {self._text}, got an object with {_names(found)}")
            elif not isinstance(found, list) or step >= len(found):
                got = f"an array of {len(found)}" if isinstance(found, list) else _kind_of(found)
                raise BadSample(f"expected an array that has the key {self._text}, got {got}")
            found = found[step]
        return found


def _unmarked(data: memoryview) -> memoryview:
    """Return a document without the byte order mark that some tools write at its start."""
    return data[len(BOM_UTF8) :] if bytes(data[: len(BOM_UTF8)]) == BOM_UTF8 else data


def _step(step: str | int, data: memoryview | msgspec.Raw) -> msgspec.Raw:
    if isinstance(step, str):
        return _member(step).decode(data).value
    elements = _elements.decode(data)
    return elements[step] if step < len(elements) else _MISSING


@functools.lru_cache(maxsize=256)
def _member(name: str) -> msgspec.json.Decoder[_Document]:
    """Return a decoder that reads one member of an object and skips the others."""
    fields = [("value", msgspec.Raw, msgspec.field(default=_MISSING, name=name))]
    return msgspec.json.Decoder(msgspec.defstruct("Document", fields))


def _names(found: dict[str, object]) -> str:
    names = [name[:40] for name, _ in zip(found, range(_NAMES_MAX), strict=False)]
    more = ", ..." if len(found) > _NAMES_MAX else ""
    return f"the keys {', '.join(names)}{more}" if names else "no keys"


def _kind_of(found: object) -> str:
    """Return the JSON name of a value's type."""
    match found:
        case None:
            return "null"
        case bool():
            return "true" if found else "false"
        case int() | float():
            return f"the number {str(found)[:24]}"
        case str():
            return "text"
        case dict():
            return "an object"
    return "an array"


class JsonValueCodec:
    """Codec of ``str``, ``json``, ``array`` and ``tensor`` with a ``key``.

    ``produce`` returns the whole value, because measuring takes as long as reading.
    """

    def __init__(self, params: StrParams | JsonParams | ArrayParams | TensorParams) -> None:
        self._params = params
        self._read = _reader(params)
        self._shape = params.shape if isinstance(params, TensorParams) else None

    def spec(self, name: str) -> TensorSpec:
        """Return the same spec as without a key."""
        return self._params.spec(name)

    def produce(self, data: memoryview) -> NDArray[Any]:
        """Return the value: bytes of text or JSON, or numbers.

        Raises:
            BadSample: not JSON, the key is missing, or the value has another type.
        """
        return self._read(data)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the recipe's shape, or else the length of the value.

        Raises:
            BadSample: as ``produce``.
        """
        return self._shape if self._shape is not None else (len(self._read(data)),)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the value into ``out``.

        Raises:
            BadSample: as ``produce``, or the shape differs from ``out``.
        """
        found = self._read(data)
        if found.shape != out.shape:
            raise BadSample(f"expected values of shape {list(out.shape)}, got {list(found.shape)}")
        out[...] = found


def _reader(params: StrParams | JsonParams | ArrayParams | TensorParams) -> Callable[[memoryview], NDArray[Any]]:
    assert params.key is not None
    path = JsonPath(params.key)
    if isinstance(params, StrParams):
        return lambda data: np.frombuffer(path.encoded(path.text(data)), np.uint8)
    if isinstance(params, JsonParams):
        return lambda data: np.frombuffer(path.json(data), np.uint8)
    dtype, flat = np.dtype(params.spec("").dtype), isinstance(params, ArrayParams)

    def numbers(data: memoryview) -> NDArray[Any]:
        found = _numbers(path, data, dtype)
        if flat and found.ndim != 1:
            raise path.another("an array of numbers", list(found.shape))
        return found

    return numbers


def json_number_reader(params: IntParams | FloatParams, *, texts: bool = False) -> Callable[[memoryview], float]:
    """Return a function that reads the number at the key (true is 1, false is 0) or a text's index in ``classes``.

    With ``texts``, a text may hold the number, as in manifests of SageMaker: ``"species": "0"``. The function raises
    BadSample if the data is not JSON, the key or number is missing, or an integer exceeds int64.
    """
    assert params.key is not None
    path, whole = JsonPath(params.key), params.own_dtype == "int64"
    places = {name: place for place, name in enumerate(getattr(params, "classes", ()))}

    def read(data: memoryview) -> float:
        if places:
            name = path.text(data)
            place = places.get(name.strip())
            if place is None:
                raise BadSample(f"expected one of the {len(places)} classes, got {name[:64]!r}")
            return place
        found = path.value(data)
        if texts and isinstance(found, str):
            found = _number_in(found, whole=whole)
        if not isinstance(found, int) and (whole or not isinstance(found, float)):
            raise path.another("an integer" if whole else "a number", found)
        if whole and not -_INT64 <= found < _INT64:
            raise BadSample(f"expected an integer of 64 bits, got {str(found)[:24]}")
        return found if whole else _float(found)

    return read


def _number_in(text: str, *, whole: bool) -> object:
    """Return the JSON number that a text holds, or the text itself if it holds none."""
    try:
        return msgspec.json.decode(text.strip(), type=int if whole else float)
    except _FAILURES:
        return text


def _float(found: float) -> float:
    try:
        return float(found)
    except OverflowError:
        return math.copysign(math.inf, found)


def _numbers(path: JsonPath, data: memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the numbers at the end of the path.

    Raises:
        BadSample: the value is not an array of numbers with rows of equal length, or a number does not fit ``dtype``.
    """
    value = path.value(data)
    if not isinstance(value, list):
        raise path.another("an array of numbers", value)
    try:
        found: NDArray[Any] = np.array(value)
    except (ValueError, OverflowError) as error:  # rows of different lengths
        raise BadSample(f"expected rows of equal length in the array at a key, got others: {error}") from error
    if not found.size:
        return found.astype(dtype)
    if found.dtype.kind not in ("b" if dtype.kind == "b" else "biuf" if dtype.kind == "f" else "biu"):
        raise path.another(f"an array of {dtype.name}", value)
    with np.errstate(over="ignore", invalid="ignore"):
        fitting = found.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(fitting, found):
        raise BadSample(f"expected numbers that fit {dtype.name}, got {found.min()} to {found.max()}")
    return fitting
