"""Synthetic pictures with the statistics of photographs: smooth fields, 1/f texture, edges. Same seed, same bytes."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

WIDTH, HEIGHT, QUALITY = 500, 375, 90
_POOL_SIZE = 12  # textures to blend pairs of: drawing each picture's own would take four times as long
_MARGIN = 96
_OCTAVES = ((5, 4, 75.0), (19, 15, 33.0), (75, 59, 19.0), (298, 235, 8.0))  # width, height, amplitude in grey levels
_FILM_GRAIN = 3.0
_EDGE_COUNT = 14

Picture = NDArray[np.uint8]


@cache
def _pool(seed: int) -> tuple[list[Picture], NDArray[np.int16]]:
    """Return textures, a margin larger than a picture, and one field of film grain."""
    rng = np.random.default_rng(seed)
    size = (WIDTH + _MARGIN, HEIGHT + _MARGIN)
    textures = []
    for _ in range(_POOL_SIZE):
        field = np.full((size[1], size[0], 3), rng.uniform(80, 170, 3), dtype=np.float32)
        for width, height, amplitude in _OCTAVES:
            noise = rng.standard_normal((height, width, 3), dtype=np.float32)
            noise = 0.35 * noise + 1.1 * noise.mean(axis=2, keepdims=True)  # channels of a photograph agree mostly
            field += amplitude * cv2.resize(noise, size, interpolation=cv2.INTER_CUBIC)
        textures.append(np.clip(field, 0, 255).astype(np.uint8))
    grain = np.repeat(_FILM_GRAIN * rng.standard_normal((size[1], size[0], 1)), 3, axis=2)
    return textures, grain.astype(np.int16)


def _edges(rng: np.random.Generator, picture: Picture) -> None:
    for _ in range(_EDGE_COUNT):
        x, y = int(rng.integers(WIDTH)), int(rng.integers(HEIGHT))
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        if rng.random() < 0.5:
            axes = (int(rng.integers(5, 60)), int(rng.integers(5, 60)))
            cv2.ellipse(picture, (x, y), axes, float(rng.integers(180)), 0, 360, colour, -1, cv2.LINE_AA)
        else:
            end = (int(rng.integers(WIDTH)), int(rng.integers(HEIGHT)))
            cv2.line(picture, (x, y), end, colour, int(rng.integers(1, 5)), cv2.LINE_AA)


def jpeg(seed: int, index: int, quality: int = QUALITY) -> bytes:
    """Return picture ``index`` as a JPEG, 4:2:0, 500 x 375; some 51 KB of it at quality 90, 100 KB at 97."""
    rng = np.random.default_rng((seed, index))
    textures, grain = _pool(seed)
    at = [slice(int(top), int(top) + HEIGHT) for top in rng.integers(0, _MARGIN, 3)]
    across = [slice(int(left), int(left) + WIDTH) for left in rng.integers(0, _MARGIN, 3)]
    first, second = (textures[index] for index in rng.integers(0, _POOL_SIZE, 2))
    weight = float(rng.uniform(0.25, 0.75))
    mirrored = cv2.flip(second[at[1], across[1]], int(rng.integers(-1, 2)))
    picture = cv2.addWeighted(first[at[0], across[0]], weight, mirrored, 1 - weight, 0)
    picture = np.asarray(cv2.add(picture, grain[at[2], across[2]], dtype=cv2.CV_8U), np.uint8)
    _edges(rng, picture)
    encoded: bytes = simplejpeg.encode_jpeg(picture, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded
