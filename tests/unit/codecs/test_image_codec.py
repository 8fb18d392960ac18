from __future__ import annotations

import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from feedd.codecs.codec_registry import make
from feedd.codecs.image import decode_image
from feedd.codecs.image_header import header_of
from feedd.codecs.transforms import crop
from feedd.errors import BadSample
from feedd.recipe.recipe import parse_field
from feedd.recipe.transform_outcomes import PIXELS_MAX
from tests.fakes.tars import jpeg, natural_image

Image = NDArray[np.uint8]

RNG = np.random.default_rng(11)
PHOTO = natural_image(RNG, 375, 500)


def encode(extension: str, image: NDArray[np.integer[Any]], *options: int) -> bytes:
    """Encode BGR(A) or grey with OpenCV."""
    ok, data = cv2.imencode(extension, image, options)
    assert ok
    return data.tobytes()


def difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Mean absolute difference in steps of 1/255."""
    return float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())


def averaged(image: Image, height: int, width: int) -> Image:
    """Resize by exact averaging over a fine grid: the reference that no fast path is used in."""
    fine = resized(image, height * 8, width * 8, cv2.INTER_LINEAR)
    boxes: Image = fine.reshape(height, 8, width, 8, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    return boxes


def resized(image: Image, height: int, width: int, how: int = cv2.INTER_CUBIC) -> Image:
    """Resize with OpenCV, into an array with a type."""
    out = np.empty((height, width, 3), np.uint8)
    cv2.resize(image, (width, height), dst=out, interpolation=how)
    return out


def test_the_centre_is_what_a_slow_reference_gives() -> None:
    """Decoding to 224 equals full decode, centre crop and averaging resize, up to interpolation noise."""
    reference = averaged(np.ascontiguousarray(simplejpeg.decode_jpeg(jpeg(PHOTO))[:, 62:437]), 224, 224)
    assert difference(decode_image(jpeg(PHOTO), 224, 224), reference) < 4.0


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_scaled_decoding_shows_the_same_picture(scale: int) -> None:
    """Where the inverse DCT shrinks, the result still is the averaged picture."""
    large = resized(PHOTO, 240 * scale, 320 * scale)
    data = jpeg(large, 95)
    reference = averaged(np.ascontiguousarray(large[:, 40 * scale : 280 * scale]), 200, 200)
    assert difference(decode_image(data, 200, 200), reference) < 3.0


def test_random_crops_show_the_box_that_the_seed_says() -> None:
    """The decoded row is the seed's box, resized, mirrored where the seed says so."""
    codec = make(parse_field("x", "image:96x96:random"))
    data = encode(".png", np.ascontiguousarray(PHOTO[:, :, ::-1]))
    for seed in range(15):
        out = np.empty((96, 96, 3), np.uint8)
        codec.decode(memoryview(data), out, seed)
        box = crop.random_resized(375, 500, seed)
        part = PHOTO[box.top : box.top + box.height, box.left : box.left + box.width]
        reference = averaged(np.ascontiguousarray(part), 96, 96)
        if crop.flipped(seed):
            reference = np.ascontiguousarray(reference[:, ::-1])
        # Loose where the picture shrinks most; a wrong box or a missing flip differs by 20 and more.
        assert difference(out, reference) < 8.0, seed


@pytest.mark.slow
def test_random_crops_of_jpeg_and_png_agree() -> None:
    """Scaled JPEG decoding cuts the same box as full decoding."""
    codec = make(parse_field("x", "image:64x64:random"))
    large = resized(PHOTO, 750, 1000)
    one, other = np.empty((64, 64, 3), np.uint8), np.empty((64, 64, 3), np.uint8)
    as_jpeg, as_png = jpeg(large, 97), encode(".png", np.ascontiguousarray(large[:, :, ::-1]))
    for seed in range(15):
        codec.decode(memoryview(as_jpeg), one, seed)
        codec.decode(memoryview(as_png), other, seed)
        assert difference(one, other) < 6.0, seed


def test_flip_alone_mirrors_the_centre() -> None:
    """With flip as the only augmentation, rows are the centre crop or its mirror image, by seed."""
    codec = make(parse_field("x", '{"decode": "image", "size": [64, 64], "augment": ["flip"]}'))
    centre = decode_image(jpeg(PHOTO), 64, 64)
    for seed in range(8):
        out = np.empty((64, 64, 3), np.uint8)
        codec.decode(memoryview(jpeg(PHOTO)), out, seed)
        np.testing.assert_array_equal(out, centre[:, ::-1] if crop.flipped(seed) else centre)


@pytest.mark.parametrize("recipe", ["image", "image:40x60"])
def test_every_colour_model_becomes_8_bit_rgb(recipe: str) -> None:
    """Grey, grey 16-bit, alpha, 16-bit, palette-free BMP, WebP and CMYK all arrive as RGB."""
    small = np.ascontiguousarray(PHOTO[:40, :60])
    bgr = np.ascontiguousarray(small[:, :, ::-1])
    grey = np.ascontiguousarray(small[:, :, 1])
    grey_rgb = np.repeat(grey[:, :, None], 3, axis=2)
    alpha = np.dstack([bgr, np.full(grey.shape, 9, np.uint8)])
    ink = np.dstack([small, np.full(grey.shape, 255, np.uint8)])  # Adobe stores ink inverted: K = 255 is no black
    exact = {
        "png": (encode(".png", bgr), small),
        "png alpha": (encode(".png", alpha), small),
        "png 16": (encode(".png", bgr.astype(np.uint16) * 257), small),
        "png grey": (encode(".png", grey), grey_rgb),
        "png grey 16": (encode(".png", grey.astype(np.uint16) * 257), grey_rgb),
        "bmp": (encode(".bmp", bgr), small),
        "webp lossless": (encode(".webp", bgr, cv2.IMWRITE_WEBP_QUALITY, 101), small),
    }
    near = {
        "webp": (encode(".webp", bgr, cv2.IMWRITE_WEBP_QUALITY, 95), small),
        "jpeg": (jpeg(small, 97), small),
        "jpeg grey": (simplejpeg.encode_jpeg(np.ascontiguousarray(grey[:, :, None]), 97, "GRAY"), grey_rgb),
        "jpeg cmyk": (simplejpeg.encode_jpeg(ink, 97, "CMYK", "444"), small),
    }
    codec = make(parse_field("x", recipe))
    for name, (data, expected) in (exact | near).items():
        out = np.zeros((40, 60, 3), np.uint8)
        codec.decode(memoryview(data), out, 0)
        assert difference(out, expected) <= (0.0 if name in exact else 9.0), name


def test_truncated_jpegs_never_pass_as_grey() -> None:
    """Cut anywhere behind its header, a JPEG is a bad sample, whatever the recipe."""
    data = jpeg(PHOTO)
    for recipe in ("image", "image:224x224", "image:32x32:random"):
        codec = make(parse_field("x", recipe))
        out = np.empty(codec.measure(memoryview(data)), np.uint8)
        for length in range(700, len(data) - 1, len(data) // 9):
            with pytest.raises(BadSample, match="expected an intact JPEG"):
                codec.decode(memoryview(data)[:length], out, 1)


def _png_header(height: int, width: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


def test_decompression_bombs_are_refused_by_their_header() -> None:
    """More pixels than the limit are refused before a pixel is allocated, in every format that can claim them."""
    jpeg_bomb = bytearray(jpeg(PHOTO[:16, :16]))
    frame = jpeg_bomb.index(b"\xff\xc0")
    jpeg_bomb[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    webp = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (16383).to_bytes(3, "little") * 2
    bmp = b"BM" + bytes(12) + struct.pack("<iii", 40, 60000, -60000)
    for data in (bytes(jpeg_bomb), _png_header(60000, 60000), webp, bmp, _png_header(0, 5)):
        for recipe in ("image", "image:8x8"):
            codec = make(parse_field("x", recipe))
            with pytest.raises(BadSample, match=f"1 to {PIXELS_MAX} pixels"):
                codec.decode(memoryview(data), np.empty((8, 8, 3), np.uint8), 0)


def test_sizes_are_read_from_headers() -> None:
    """Height and width come from the first bytes, for all kinds of WebP too."""
    bgr = np.ascontiguousarray(PHOTO[:41, :67, ::-1])
    alpha = np.dstack([bgr, np.full(bgr.shape[:2], 9, np.uint8)])
    for data in (
        encode(".png", bgr),
        encode(".bmp", bgr),
        encode(".webp", bgr, cv2.IMWRITE_WEBP_QUALITY, 80),
        encode(".webp", bgr, cv2.IMWRITE_WEBP_QUALITY, 101),
        encode(".webp", alpha, cv2.IMWRITE_WEBP_QUALITY, 80),
    ):
        assert header_of(memoryview(data))[:2] == (41, 67)


def test_tiny_images_can_be_enlarged() -> None:
    """A single pixel becomes a whole row of that colour."""
    pixel = np.full((1, 1, 3), (10, 200, 30), np.uint8)
    data = encode(".png", np.ascontiguousarray(pixel[:, :, ::-1]))
    np.testing.assert_array_equal(decode_image(data, 5, 7), np.broadcast_to(pixel, (5, 7, 3)))
