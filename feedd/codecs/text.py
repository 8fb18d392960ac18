"""The codecs ``bytes``, ``str``, ``json`` and ``image:raw``: a copy of the field's bytes after a check."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.recipe.params import Params
    from feedd.values import TensorSpec

_BLANKS: Final = np.frombuffer(b"   ", np.uint8)
_DEPTH_MAX: Final = 500
"""Maximum nesting of lists and objects: a client's parser has about 1,000 calls of stack, some of them its own."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WIDE: Final = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of other encodings."""


class BytesCodec:
    """Copies the field's bytes."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8, TEXT or JSON."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the length in bytes."""
        return (len(data),)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Copy ``data`` into ``out`` (uint8, same length).

        Raises:
            BadSample: another length, or what ``check`` finds.
        """
        if out.shape != (len(data),):
            raise BadSample(f"expected {out.size} bytes, got {len(data)}")
        self.check(data)
        out[:] = np.frombuffer(data, np.uint8)

    def check(self, data: memoryview) -> None:
        """Accept anything."""


class StrCodec(BytesCodec):
    """UTF-8 text."""

    def check(self, data: memoryview) -> None:
        """Accept only UTF-8.

        Raises:
            BadSample: not UTF-8; names the offset of the first bad byte.
        """
        try:
            str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise BadSample(f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}") from error


class JsonCodec(BytesCodec):
    """JSON text in UTF-8; NaN and infinities pass, as in Python's own parser.

    A client can parse every accepted text. It gets the same text, except that a byte order mark is replaced by blanks.
    """

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Copy ``data`` into ``out`` (uint8, same length).

        Raises:
            BadSample: another length, or what ``check`` finds.
        """
        super().decode(data, out, seed)
        if bytes(data[: len(BOM_UTF8)]) == BOM_UTF8:
            out[: len(BOM_UTF8)] = _BLANKS

    def check(self, data: memoryview) -> None:
        """Accept only JSON.

        Raises:
            BadSample: not JSON, in another encoding than UTF-8, or nested too deeply for a client.
        """
        text = bytes(data).removeprefix(BOM_UTF8)
        try:
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            _check_as_clients(text)
        if text.count(b"[") + text.count(b"{") > _DEPTH_MAX and _depth(text) > _DEPTH_MAX:
            raise _too_deep()


def _check_as_clients(text: bytes) -> None:
    """Parse as a client does, because Python accepts some JSON that msgspec rejects."""
    try:
        json.loads(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        got = _wide(text) or f"byte {text[error.start]:#04x} at {error.start}"
        raise _encoded_as(got) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        wide = _wide(text)
        if wide:
            raise _encoded_as(wide) from error
        raise BadSample(f"expected JSON, got {text[:24]!r}: {error}") from error


def _wide(text: bytes) -> str:
    """Return the name of a text's UTF-16 or UTF-32 encoding, or an empty string if neither is recognized."""
    return next((name for mark, name in _WIDE.items() if text.startswith(mark)), "UTF-16 or UTF-32" * (b"\0" in text))


def _depth(text: bytes) -> int:
    """Return the maximum nesting of lists and objects in a JSON text."""
    raw = np.frombuffer(_STRING.sub(b"", text), np.uint8) | 0x20  # "[" and "{" differ only by that bit, as "]" and "}"
    return int(np.cumsum((raw == ord("{")).astype(np.int8) - (raw == ord("}")), dtype=np.int64).max(initial=0))


def _encoded_as(got: str) -> BadSample:
    return BadSample(f"expected JSON in UTF-8, got {got}: convert it, for example with iconv -t UTF-8")


def _too_deep() -> BadSample:
    return BadSample(f"expected JSON of at most {_DEPTH_MAX} nested lists and objects, got more")
