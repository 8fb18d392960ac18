"""Pictures that tell who they are, and which part of them was cut out.

Red grows from left to right, green from top to bottom, and blue is five times the number of the picture. Both
environments write and read them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 5
"""From the blue of a picture to that of the next: more than decoders of JPEG differ. There are 52 pictures."""
HEIGHT, WIDTH = 72, 96
CLASSES = [f"n{number:08d}" for number in range(5)]
"""Folders of ``folder_files``."""


def pixels(number: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a picture: uint8 ``[height, width, 3]``."""
    found = np.empty((height, width, 3), np.uint8)
    found[..., 0] = np.linspace(0, 255, width).round()[None, :]
    found[..., 1] = np.linspace(0, 255, height).round()[:, None]
    found[..., 2] = STEP * number
    return found


def picture(number: int, height: int = HEIGHT, width: int = WIDTH, kind: str = "JPEG") -> bytes:
    """Return a picture as a file."""
    out = io.BytesIO()
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    Image.fromarray(pixels(number, height, width)).save(out, kind, **options)
    return out.getvalue()


def folder_files(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the files of an image folder: picture ``n`` is of class ``n % 5``.

    The pictures for validation are larger, and PNG: it keeps colours, and so tells the exact crop.
    """
    for number in range(count):
        name = f"{CLASSES[number % len(CLASSES)]}/{number:05d}"
        yield f"imagenet/train/{name}.JPEG", picture(number)
        yield f"imagenet/val/{name}.png", picture(number, 300, 400, "PNG")
