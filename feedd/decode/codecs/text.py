"""``bytes``, ``str``, ``json`` and ``image:raw``: the field's bytes as they are, after a check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.decode.params import Params
    from feedd.values import TensorSpec


class BytesCodec:
    """Copies."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8, TEXT or JSON."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Length in bytes."""
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
        """Accept UTF-8.

        Raises:
            BadSample: something else, with the offset of the first bad byte.
        """
        try:
            str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise BadSample(f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}") from error


class JsonCodec(BytesCodec):
    """JSON text; NaN and infinities pass, as they do in Python's own parser."""

    def check(self, data: memoryview) -> None:
        """Accept JSON.

        Raises:
            BadSample: something else.
        """
        try:
            msgspec.json.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            try:
                json.loads(bytes(data))
            except (ValueError, RecursionError) as error:
                raise BadSample(f"expected JSON, got {bytes(data[:24])!r}: {error}") from error
