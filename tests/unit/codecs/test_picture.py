"""Image formats and options, held against Pillow."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from feedd.codecs.codec_registry import make
from feedd.codecs.image_header import header_of, orientation_of
from feedd.errors import BadSample
from feedd.recipe.recipe import needs_measure, parse_field, spec_of
from feedd.recipe.transform_outcomes import PIXELS_MAX
from tests.fakes.tars import natural_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

PHOTO: Final = natural_image(np.random.default_rng(3), 40, 61)
GREY: Final = np.ascontiguousarray(PHOTO[:, :, 1])
ALPHA: Final = np.dstack([PHOTO, GREY])
LOSSLESS: Final[dict[str, dict[str, Any]]] = {
    "PNG": {},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "BMP": {},
    "JPEG2000": {"irreversible": False},
}


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Encode by Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(tag: int, kind: str = "PNG", **options: Any) -> bytes:
    """Encode the photo with an EXIF orientation."""
    exif = Image.Exif()
    exif[274] = tag
    return saved(Image.fromarray(PHOTO), kind, exif=exif, **options)


def decoded(recipe: str, data: bytes, seed: int = 0) -> NDArray[Any]:
    """Decode one sample into a row of the shape that is measured."""
    field = parse_field("x", recipe)
    codec = make(field)
    shape = codec.measure(memoryview(data))
    spec = spec_of(field)
    if spec.shape:
        assert shape == spec.shape
        assert not needs_measure(field)
    out = np.zeros(shape, spec.dtype)
    codec.decode(memoryview(data).toreadonly(), out, seed)
    return out


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_are_exact(kind: str) -> None:
    """PNG, TIFF, WebP, BMP and JPEG 2000 give the very pixels that were encoded, plain or through the longer path."""
    data = saved(Image.fromarray(PHOTO), kind, **LOSSLESS[kind])
    for recipe in ("image", '{"decode": "image", "orient": true}', "image:40x61"):
        np.testing.assert_array_equal(decoded(recipe, data), PHOTO)


def test_lossy_formats_are_near() -> None:
    """AVIF and a bare JPEG 2000 codestream show the picture."""
    for data in (
        saved(Image.fromarray(PHOTO), "AVIF", quality=95),
        saved(Image.fromarray(PHOTO), "JPEG2000", no_jp2=True, irreversible=True),
    ):
        assert np.abs(decoded("image", data).astype(int) - PHOTO).mean() < 6


@pytest.mark.parametrize("kind", [*LOSSLESS, "AVIF", "J2K"])
def test_sizes_come_from_headers(kind: str) -> None:
    """Height and width are known from the file's first part: what follows the header may be missing."""
    options: dict[str, Any] = {"no_jp2": True} if kind == "J2K" else LOSSLESS.get(kind, {})
    data = saved(Image.fromarray(PHOTO), kind.replace("J2K", "JPEG2000"), **options)
    assert header_of(memoryview(data))[:2] == (40, 61)
    if kind != "TIFF":  # Pillow writes the directory behind the pixels
        assert header_of(memoryview(data)[: len(data) - 40])[:2] == (40, 61)


def test_big_and_little_endian_and_big_tiffs_are_read() -> None:
    """All three layouts of a TIFF's directory tell its size and its orientation."""
    for order, magic in (("<", b"II*\0"), (">", b"MM\0*")):
        entries = [(256, 3, 7), (257, 4, 9), (274, 3, 6), (277, 3, 3)]
        body = struct.pack(order + "H", len(entries))
        for tag, kind, value in entries:
            packed = struct.pack(order + ("H2x" if kind == 3 else "I"), value)
            body += struct.pack(order + "HHI", tag, kind, 1) + packed
        data = memoryview(magic + struct.pack(order + "I", 8) + body)
        assert header_of(data)[:3] == (9, 7, 3)
        assert orientation_of(data) == 6
    entry = [struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in ((256, 7), (257, 9))]
    big = b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 2) + b"".join(entry)
    assert header_of(memoryview(big))[:2] == (9, 7)


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_applied_where_it_is_asked_for(kind: str, tag: int) -> None:
    """Each of the eight turns is Pillow's exif_transpose; without ``orient`` pixels stay as stored."""
    lossy = kind in {"JPEG", "AVIF"}
    options = {"quality": 97, "subsampling": "4:4:4"} if lossy else LOSSLESS[kind]
    data = turned(tag, kind, **options)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    stored = np.asarray(Image.open(io.BytesIO(data))) if lossy else PHOTO
    tolerance = 3 if lossy else 0
    for recipe, expected in (("image", stored), ('{"decode": "image", "orient": true}', upright)):
        got = decoded(recipe, data)
        assert got.shape == expected.shape
        assert np.abs(got.astype(int) - expected).max() <= tolerance, recipe


@pytest.mark.parametrize("tag", [1, 3, 6, 8])
@pytest.mark.slow
def test_scaled_decoding_cuts_the_turned_box(tag: int) -> None:
    """A JPEG decoded at a quarter shows the same part as one that is decoded whole, whichever way it is turned."""
    large = np.asarray(Image.fromarray(PHOTO).resize((610, 400), Image.Resampling.BICUBIC))
    exif = Image.Exif()
    exif[274] = tag
    files = [
        saved(Image.fromarray(large), kind, exif=exif, **o) for kind, o in (("JPEG", {"quality": 97}), ("PNG", {}))
    ]
    recipe = '{"decode": "image", "orient": true, "transforms": [{"op": "random_resized_crop", "size": 40}]}'
    fitted = '{"decode": "image", "orient": true, "size": [40, 40], "augment": ["random_resized_crop", "flip"]}'
    for seed in range(8):
        for text in (recipe, fitted):
            one, other = (decoded(text, data, seed).astype(int) for data in files)
            assert np.abs(one - other).mean() < 6


@pytest.mark.slow
def test_both_paths_give_the_same_pixels() -> None:
    """Where the longer path has nothing more to do, its rows are the short one's to the bit, for JPEG and others."""
    large = Image.fromarray(PHOTO).resize((900, 620), Image.Resampling.BICUBIC)
    for data in (saved(large, "JPEG", quality=90), saved(large, "PNG"), saved(large.convert("CMYK"), "JPEG")):
        for augment in ([], ["random_resized_crop", "flip"], ["flip"]):
            short = json.dumps({"decode": "image", "size": [64, 80], "augment": augment})
            longer = json.dumps({"decode": "image", "size": [64, 80], "augment": augment, "orient": True})
            for seed in range(6):
                np.testing.assert_array_equal(decoded(longer, data, seed), decoded(short, data, seed))


def test_grey_is_luma() -> None:
    """``gray`` has one channel: a grey file's own, and a colour file's luma as Pillow has it."""
    expected = np.asarray(Image.fromarray(PHOTO).convert("L"))[:, :, None]
    for kind, options in LOSSLESS.items():
        data = saved(Image.fromarray(PHOTO), kind, **options)
        got = decoded('{"decode": "image", "mode": "gray"}', data)
        assert np.abs(got.astype(int) - expected).max() <= 1, kind
        if kind != "WEBP":  # which has no grey
            data = saved(Image.fromarray(GREY), kind, **options)
            np.testing.assert_array_equal(decoded('{"decode": "image", "mode": "gray"}', data)[:, :, 0], GREY)
    jpegs = saved(Image.fromarray(PHOTO), "JPEG", quality=97), saved(Image.fromarray(GREY), "JPEG", quality=97)
    for data in jpegs:
        pillow = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
        got = decoded('{"decode": "image", "mode": "gray"}', data)[:, :, 0]
        assert np.abs(got.astype(int) - pillow).mean() < 1.5


def test_unchanged_keeps_the_channels_a_file_has() -> None:
    """Grey has 1, colours 3, alpha 4; each with the values that were stored."""
    recipe = '{"decode": "image", "mode": "unchanged"}'
    assert spec_of(parse_field("x", recipe)).ndim == 3
    for kind in ("PNG", "TIFF", "JPEG2000"):
        for stored in (GREY, PHOTO, ALPHA):
            data = saved(Image.fromarray(stored), kind, **LOSSLESS[kind])
            np.testing.assert_array_equal(decoded(recipe, data), stored.reshape(40, 61, -1))
    np.testing.assert_array_equal(
        decoded(recipe, saved(Image.fromarray(ALPHA), "WEBP", lossless=True, exact=True)), ALPHA
    )
    assert decoded(recipe, saved(Image.fromarray(ALPHA), "AVIF")).shape == (40, 61, 4)
    assert decoded(recipe, saved(Image.fromarray(GREY), "JPEG")).shape == (40, 61, 1)
    assert decoded(recipe, saved(Image.fromarray(PHOTO), "JPEG")).shape == (40, 61, 3)
    palette = Image.fromarray(PHOTO).quantize(16)
    np.testing.assert_array_equal(decoded(recipe, saved(palette, "PNG")), np.asarray(palette.convert("RGB")))


def test_alpha_is_dropped_and_ink_becomes_colour() -> None:
    """As RGB, alpha leaves no trace, and CMYK files are the colours that Pillow makes of them."""
    for kind in ("PNG", "TIFF", "WEBP"):
        options = LOSSLESS[kind] | ({"exact": True} if kind == "WEBP" else {})
        np.testing.assert_array_equal(decoded("image", saved(Image.fromarray(ALPHA), kind, **options)), PHOTO)
    for kind in ("TIFF", "JPEG"):
        data = saved(Image.fromarray(PHOTO).convert("CMYK"), kind)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        for recipe in ("image", '{"decode": "image", "mode": "unchanged"}'):
            assert np.abs(decoded(recipe, data).astype(int) - expected).mean() < 3, kind


def test_sixteen_bits_are_kept() -> None:
    """``uint16`` gives a 16-bit file's own values, and eight bits spread over them; ``uint8`` the upper ones."""
    deep = PHOTO.astype(np.uint16) * 256 + np.arange(61, dtype=np.uint16)[None, :, None]
    recipe = '{"decode": "image", "dtype": "uint16"}'
    lossless = (cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000)
    for extension, how in ((".png", ()), (".tiff", ()), (".jp2", lossless)):
        ok, encoded = cv2.imencode(extension, np.ascontiguousarray(deep[:, :, ::-1]), how)
        assert ok
        data = encoded.tobytes()
        np.testing.assert_array_equal(decoded(recipe, data), deep)
        assert np.abs(decoded("image", data).astype(int) - PHOTO).max() <= 1
    for kind in ("PNG", "TIFF"):
        data = saved(Image.fromarray(deep[:, :, 0]), kind)
        grey = decoded('{"decode": "image", "dtype": "uint16", "mode": "gray"}', data)
        np.testing.assert_array_equal(grey[:, :, 0], deep[:, :, 0])
    for kind, options in LOSSLESS.items():
        data = saved(Image.fromarray(PHOTO), kind, **options)
        np.testing.assert_array_equal(decoded(recipe, data), PHOTO.astype(np.uint16) * 257)


def test_alpha_of_16_bits_loses_its_lower_half() -> None:
    """With ``uint8`` and ``unchanged``, 16-bit alpha images keep the upper bits."""
    deep = ALPHA.astype(np.uint16) * 256 + 7
    ok, data = cv2.imencode(".png", np.ascontiguousarray(deep[:, :, [2, 1, 0, 3]]))
    assert ok
    np.testing.assert_array_equal(decoded('{"decode": "image", "mode": "unchanged"}', data.tobytes()), ALPHA)
    wide = decoded('{"decode": "image", "mode": "unchanged", "dtype": "uint16"}', data.tobytes())
    np.testing.assert_array_equal(wide, deep)


def test_ten_bit_avif_spans_all_sixteen() -> None:
    """White of ten bits is white of sixteen and of eight."""
    white = np.full((16, 16, 3), 1023, np.uint16)
    ok, data = cv2.imencode(".avif", white, [cv2.IMWRITE_AVIF_DEPTH, 10])
    assert ok
    assert header_of(memoryview(data.tobytes())).depth == 10
    assert (decoded('{"decode": "image", "dtype": "uint16"}', data.tobytes()) >= 65535 - 3 * 64).all()
    assert (decoded('{"decode": "image", "orient": true}', data.tobytes()) >= 253).all()


def test_what_cannot_be_told_apart_is_refused() -> None:
    """Floats, and two channels under ``unchanged``, are bad samples that say what they are."""
    floats = saved(Image.fromarray(PHOTO[:, :, 0].astype(np.float32)), "TIFF")
    two = saved(Image.fromarray(PHOTO).convert("LA"), "TIFF")
    for recipe, data in (("image", floats), ('{"decode": "image", "mode": "unchanged"}', two)):
        with pytest.raises(BadSample, match=r"expected .* got"):
            decoded(recipe, data)


@pytest.mark.slow
def test_a_png_that_could_not_hold_its_pixels_is_refused() -> None:
    """No deflate stream is so short: nothing is allocated for a small file with a large header; real ones pass."""
    blank = saved(Image.new("RGB", (9000, 9000)), "PNG")
    assert header_of(memoryview(blank))[:2] == (9000, 9000)
    claims = bytearray(saved(Image.fromarray(PHOTO), "PNG"))
    claims[16:24] = struct.pack(">II", 9000, 9000)
    with pytest.raises(BadSample, match="can hold 9000x9000 pixels"):
        decoded("image:8x8", bytes(claims))
    greedy = bytearray(saved(Image.fromarray(PHOTO), "PNG"))
    for at in (33, len(greedy) - 12):  # of the first chunk behind the header, and of the last
        wrong = bytearray(greedy)
        wrong[at : at + 4] = b"\x7f\xff\xff\x00"
        with pytest.raises(BadSample, match="within a chunk"):
            decoded("image", bytes(wrong))
    for image in (Image.new("1", (4000, 4000)), Image.new("P", (5000, 3000)), Image.new("I;16", (3000, 3000))):
        data = saved(image, "PNG", optimize=True)
        assert header_of(memoryview(data))[:2] == image.size[::-1]


def test_bombs_are_refused_by_their_headers() -> None:
    """A TIFF, AVIF or JPEG 2000 that claims too many pixels is refused before any is allocated."""
    tiff = bytearray(saved(Image.fromarray(PHOTO), "TIFF"))
    at = tiff.index(struct.pack("<HHI", 256, 4, 1)) if struct.pack("<HHI", 256, 4, 1) in tiff else -1
    if at < 0:
        at = tiff.index(struct.pack("<HHI", 256, 3, 1))
        tiff[at + 2 : at + 4] = struct.pack("<H", 4)
    tiff[at + 8 : at + 12] = struct.pack("<I", 1 << 30)
    avif = bytearray(saved(Image.fromarray(PHOTO), "AVIF"))
    at = avif.index(b"ispe")
    avif[at + 8 : at + 16] = struct.pack(">II", 1 << 20, 1 << 20)
    stream = bytearray(saved(Image.fromarray(PHOTO), "JPEG2000"))
    at = stream.index(b"\xff\x4f\xff\x51")
    stream[at + 8 : at + 16] = struct.pack(">II", 1 << 30, 1 << 30)
    for data in (tiff, avif, stream):
        for recipe in ("image", "image:8x8", '{"decode": "image", "size": [8, 8], "orient": true}'):
            codec = make(parse_field("x", recipe))
            with pytest.raises(BadSample, match=f"1 to {PIXELS_MAX} pixels"):
                codec.decode(memoryview(bytes(data)), np.empty((8, 8, 3), np.uint8), 0)
