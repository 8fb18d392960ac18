"""How the arms decode: with feedd's own codec, handed to the peers as well, or as their users usually do."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.codecs.image import FittedImageCodec
from feedd.recipe.params import ImageParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SIDE = 224
_RESIZED_SIDE = 256
_codec = FittedImageCodec(ImageParams(size=(SIDE, SIDE)), (SIDE, SIDE))


def decode_picture(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Decode, resize, crop: ``decode_image(data, 224, 224)``, without building its codec for each picture."""
    picture = np.empty((SIDE, SIDE, 3), np.uint8)
    _codec.decode(memoryview(data), picture, 0)
    return picture


def decode_usual(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Decode with Pillow, then ``Resize(256)`` and ``CenterCrop(224)`` as torchvision does them to a Pillow image.

    Without ``ToTensor``: its change to float32 costs more again, and what is compared ends at uint8.
    """
    from PIL import Image  # noqa: PLC0415 - the other way of decoding must not pay for it

    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    scale = _RESIZED_SIDE / min(width, height)
    image = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BILINEAR)
    left, top = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def take_record(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Return the bytes themselves, as an array that shares their memory."""
    return np.frombuffer(data, np.uint8)


_DECODERS: dict[str, Callable[[bytes | memoryview], NDArray[np.uint8]]] = {
    "same": decode_picture,
    "usual": decode_usual,
    "record": take_record,
}


def decoder(settings: dict[str, Any]) -> Callable[[bytes | memoryview], NDArray[np.uint8]]:
    """Return the way of decoding that an arm's settings name: ``same`` for all, unless they name another."""
    return _DECODERS[settings.get("decoder", "same")]
