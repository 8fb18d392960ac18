"""Ready rows: what is made of them is what the whole recipe makes, bit by bit; what cannot be one stays as it came."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs import jpeg as jpeg_codec
from feedd.codecs import pixels
from feedd.codecs.codec_registry import make
from feedd.conversion import Conversion
from feedd.errors import BadSample, Internal
from feedd.recipe.params import ImageParams, params_of
from feedd.recipe.predecoded import (
    PIXELS,
    crop_friendly,
    original_mark,
    original_of,
    prefix_of,
    ready_prefix,
    rows_params,
)
from feedd.recipe.recipe import parse_field
from feedd.tables.registry import get, is_ready, predecode_conversion, undecoded
from feedd.workers.fixed_width import plain_numbers
from tests.budget import budget
from tests.fakes import making
from tests.fakes.tars import jpeg, natural_image, tar_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import FieldRecipe
    from tests.fakes.making import Made

NORMALIZE: Final = {"op": "normalize", "mean": [0.5], "std": [0.25]}
CUT: Final = {"op": "random_resized_crop", "size": 24}
SOURCES: Final = ["jpg", "png"]
# recipe, transforms done ahead, shape of rows, whether that is all
RECIPES: Final[dict[str, tuple[Any, int, tuple[int, ...] | None, bool]]] = {
    "fixed": ("image:32x24", 0, (32, 24, 3), True),
    "whole": ("image", 0, None, True),
    "flip": ({"size": [24, 24], "augment": ["flip"]}, 0, (24, 24, 3), False),
    "flip and more": ({"size": [24, 24], "augment": ["flip"], "transforms": [NORMALIZE]}, 0, (24, 24, 3), False),
    "first": ({"size": [20, 24], "transforms": ["channels_first"]}, 1, (3, 20, 24), True),
    "resized": ({"transforms": [{"op": "resize", "size": 30}, {"op": "random_crop", "size": 24}]}, 1, None, False),
    "friendly": ({"transforms": [{"op": "resize", "size": 30}, CUT, "horizontal_flip", NORMALIZE]}, 1, None, False),
    "normal": (
        {"transforms": [{"op": "resize", "size": 30}, {"op": "center_crop", "size": 24}, NORMALIZE, "channels_first"]},
        2,
        (24, 24, 3),
        False,
    ),
    "orient": ({"orient": True, "mode": "gray", "dtype": "uint16", "size": [20, 20]}, 0, (20, 20, 1), True),
    "unchanged": ({"mode": "unchanged", "transforms": [{"op": "pad", "padding": 2}, "vertical_flip"]}, 1, None, False),
    "grey by chance": (
        {"size": [16, 16], "transforms": [{"op": "grayscale", "channels": 3, "p": 0.5}]},
        0,
        (16, 16, 3),
        False,
    ),
    "grey": ({"size": [16, 16], "transforms": ["grayscale", NORMALIZE]}, 1, (16, 16, 1), False),
}


def field(recipe: object) -> FieldRecipe:
    """Return a field that a JPEG or a PNG may hold."""
    given = {"decode": "image", **recipe} if isinstance(recipe, dict) else {"decode": "image"}
    if isinstance(recipe, str) and ":" in recipe:
        given["size"] = [int(side) for side in recipe.split(":")[1].split("x")]
    return parse_field("jpg", json.dumps({**given, "from": SOURCES}))


def pictures() -> list[tuple[str, bytes]]:
    """Return encoded images of several kinds."""
    rng = np.random.default_rng(5)
    photos = [natural_image(rng, height, width) for height, width in ((60, 90), (90, 61), (33, 33), (130, 200))]
    found = [("jpg", jpeg(photo)) for photo in photos]
    grey, alpha = photos[0][:, :, 1], np.dstack([photos[1], photos[1][:, :, 0]])
    deep = photos[2].astype(np.uint16) * 257
    found += [("png", cv2.imencode(".png", image)[1].tobytes()) for image in (photos[0], grey, alpha, deep)]
    found.append(("jpg", cv2.imencode(".jpg", grey)[1].tobytes()))
    return found


def shard(samples: list[tuple[str, bytes]]) -> bytes:
    """Return a tar of them, each with a label."""
    return tar_bytes([(f"k{n:03}", {kind: data, "cls": str(n).encode()}) for n, (kind, data) in enumerate(samples)])


def made(data: bytes, recipe: FieldRecipe, limit_bytes: int = 64 << 20) -> Made:
    """Make rows of a tar."""
    return making.make(get("rows"), data, rows_params("tar", [recipe], limit_bytes))


def decoded(recipe: FieldRecipe, data: bytes, seed: int) -> NDArray[Any]:
    """Decode one sample."""
    codec = make(recipe)
    out = np.zeros(codec.measure(memoryview(data)), codec.spec("x").dtype)
    codec.decode(memoryview(data), out, seed)
    return out


def prefix(recipe: FieldRecipe) -> Any:
    """Return the part that is done ahead, which there is."""
    found = ready_prefix(recipe)
    assert found is not None
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_done_ahead(name: str) -> None:
    """Everything up to the first thing left to chance, and nothing that only makes rows larger."""
    recipe, done, shape, whole = RECIPES[name]
    found = prefix(field(recipe))
    assert (found.done, found.shape, found.whole) == (done, shape, whole)
    plain = plain_numbers(replace(field(recipe), encoding=PIXELS))
    assert (plain is not None) == (whole and shape is not None)
    assert plain is None or plain.width_bytes == plain.out_bytes == found.width_bytes


@pytest.mark.parametrize("recipe", ["image:raw", "image:24x24:random", {"decode": "image", "transforms": [CUT]}])
def test_what_is_not(recipe: object) -> None:
    """Nothing is done ahead of a random cut, nor of what is not decoded."""
    text = recipe if isinstance(recipe, str) else json.dumps(recipe)
    assert ready_prefix(parse_field("jpg", text)) is None
    assert ready_prefix(parse_field("jpg", "bytes")) is None
    with pytest.raises(Internal):
        make(replace(parse_field("jpg", "image:24x24:random"), encoding=PIXELS))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("room", ["all", "some", "none"])
@pytest.mark.slow
def test_batches_are_what_they_would_be(name: str, room: str) -> None:
    """For every image, kind and seed, and however many of them are rows; keys and other fields stay."""
    recipe, samples = field(RECIPES[name][0]), pictures()
    data = shard(samples)
    whole = made(data, recipe)
    limit_bytes = {"all": 64 << 20, "none": 0, "some": (len(data) + len(whole.shard)) // 2 + (40 << 10)}[room]
    limit_bytes = max(limit_bytes, len(data)) if room == "some" else limit_bytes
    ready = made(data, recipe, limit_bytes) if room != "all" else whole
    ready_recipe = replace(recipe, encoding=PIXELS)
    cells, width = ready.raw("jpg"), prefix(recipe).width_bytes
    rows = [original_of(memoryview(cell or b""), width) is None for cell in cells]
    assert {"all": all(rows), "some": True, "none": not any(rows)}[room]
    assert room == "none" or len(ready.shard) <= limit_bytes
    for (_, encoded), cell in zip(samples, cells, strict=True):
        assert cell is not None
        for seed in (0, 7, 2**63 + 5):
            np.testing.assert_array_equal(decoded(ready_recipe, cell, seed), decoded(recipe, encoded, seed))
    assert ready.index.encodings == (PIXELS, "")
    assert ready.raw("cls") == [str(n).encode() for n in range(len(samples))]
    assert [ready.index.key(n) for n in range(len(samples))] == [f"k{n:03}" for n in range(len(samples))]


def test_rows_need_no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the libraries is asked again, nor is a header read."""
    samples = pictures()
    ready = {name: made(shard(samples), field(recipe)) for name, (recipe, *_) in RECIPES.items()}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded again")

    for module in (jpeg_codec, pixels):
        monkeypatch.setattr(module, "decode", refuse)
    monkeypatch.setattr(jpeg_codec, "header", refuse)
    for name, (recipe, *_) in RECIPES.items():
        for cell in ready[name].raw("jpg"):
            assert cell is not None
            decoded(replace(field(recipe), encoding=PIXELS), cell, 3)


@pytest.mark.parametrize("name", ["fixed", "whole", "friendly"])
def test_bad_samples_stay_bad(name: str) -> None:
    """Each for the very reason it has without, whatever its length; one without the field has none."""
    recipe = field(RECIPES[name][0])
    picture = jpeg(natural_image(np.random.default_rng(1), 40, 50))
    width = prefix(recipe).width_bytes or 999
    bad = [picture[:-40], b"", b"\0", b"\1\0\0\0", bytes(width), bytes(width - 1), b"\2" * (width - 2), b"no image"]
    data = tar_bytes(
        [*((f"b{n}", {"jpg": one}) for n, one in enumerate(bad)), ("c", {"cls": b"1"}), ("d", {"jpg": picture})]
    )
    ready = made(data, recipe)
    *cells, none, good = ready.raw("jpg")
    assert none is None
    for one, cell in zip(bad, cells, strict=True):
        assert cell is not None
        reasons = []
        for how, sample in ((recipe, one), (replace(recipe, encoding=PIXELS), cell)):
            with pytest.raises(BadSample) as caught:
                decoded(how, sample, 0)
            reasons.append(caught.value.message)
        assert reasons[0] == reasons[1]
    assert good is not None
    np.testing.assert_array_equal(decoded(replace(recipe, encoding=PIXELS), good, 0), decoded(recipe, picture, 0))


@settings(max_examples=budget(100), deadline=None)
@given(data=st.binary(max_size=40), width=st.one_of(st.none(), st.integers(1, 42)))
def test_originals_come_back(data: bytes, width: int | None) -> None:
    """Whatever they are."""
    cell = original_mark(len(data), width) + data
    found = original_of(memoryview(cell), width)
    assert found is not None
    assert bytes(found) == data


@settings(max_examples=budget(150), deadline=None)
@given(
    name=st.sampled_from(sorted(RECIPES)), data=st.binary(max_size=64), at=st.integers(0, 2000), cut=st.integers(0, 60)
)
@pytest.mark.slow
def test_mutated_cells_do_no_harm(name: str, data: bytes, at: int, cut: int) -> None:
    """They are images of the right shape, or bad samples."""
    recipe = field(RECIPES[name][0])
    (cell,) = made(shard(pictures()[:1]), recipe).raw("jpg")
    assert cell is not None
    mutated = cell[:at] + data + cell[at + cut :]
    for one in (mutated, data):
        try:
            decoded(replace(recipe, encoding=PIXELS), one, 1)
        except BadSample:
            continue


def test_several_fields_and_objects_of_another_kind() -> None:
    """Each field has a column of its own; what is no encoded image stays as it is."""
    image, mask = field("image:16x16"), parse_field("seg.png", "image:8x8")
    picture = jpeg(natural_image(np.random.default_rng(1), 40, 50))
    png = cv2.imencode(".png", np.full((20, 20, 3), 9, np.uint8))[1].tobytes()
    data = tar_bytes([("a", {"jpg": picture, "seg.png": png, "json": b"{}"}), ("b", {"seg.png": png})])
    params = rows_params("tar", [mask, image], 1 << 20)
    assert params == rows_params("tar", [image, mask], 1 << 20)
    ready = making.make(get("rows"), data, params)
    assert dict(zip(ready.index.fields, ready.index.encodings, strict=True)) == {
        "jpg": PIXELS,
        "seg.png": PIXELS,
        "json": "",
    }
    assert [None if cell is None else len(cell) for cell in ready.raw("jpg")] == [16 * 16 * 3, None]
    assert ready.raw("seg.png") == [bytes([9]) * 192] * 2
    assert ready.raw("json") == [b"{}", None]
    lines = making.make(get("rows"), b'{"a": 1}\n', rows_params("jsonl", [parse_field("json", "image:8x8")], 1 << 20))
    assert (lines.raw("json"), lines.index.encodings) == ([b'{"a": 1}'], ("json",))


def test_packed_objects() -> None:
    """They are unpacked first, and give the same shard."""
    data, recipe = shard(pictures()), field("image:16x16")
    params = rows_params("tar", [recipe], 64 << 20)
    packed = making.make(get("gunzip+rows"), gzip.compress(data), params, "s3://b/a.tar.gz")
    assert packed.shard == made(data, recipe).shard


def test_a_size_before_a_random_cut() -> None:
    """The shorter side is 256, or eight sevenths of a larger cut; other recipes stay as they are."""
    for text, transforms in {
        "image:224x200:random": [("resize", 256), ("random_resized_crop", (224, 200)), ("horizontal_flip", None)],
        '{"decode": "image", "transforms": [{"op": "random_resized_crop", "size": 384}, "vertical_flip"]}': [
            ("resize", 439),
            ("random_resized_crop", 384),
            ("vertical_flip", None),
        ],
    }.items():
        recipe = crop_friendly(parse_field("jpg;png", text))
        params = params_of(recipe)
        assert isinstance(params, ImageParams)
        steps = [(one.__struct_config__.tag, getattr(one, "size", None)) for one in params.transforms]
        assert (steps, params.size, params.augment) == (transforms, None, ())
        found = prefix_of(params)
        assert found is not None
        assert found.done == 1
        assert (recipe.name, recipe.sources) == ("jpg", ("jpg", "png"))
        assert crop_friendly(recipe) == recipe
    for text in (
        "image",
        "image:raw",
        "image:24x24",
        "bytes",
        '{"decode": "image", "size": [8, 8], "augment": ["flip"]}',
    ):
        assert crop_friendly(parse_field("jpg", text)) == parse_field("jpg", text)


def test_names_of_forms() -> None:
    """Packed objects are unpacked first; what is made into a table already has no rows."""
    gunzip, parquet = Conversion("gunzip"), Conversion("parquet", "rows")
    assert predecode_conversion(None, "{}") == Conversion("rows", "{}")
    assert predecode_conversion(gunzip, "{}") == Conversion("gunzip+rows", "{}")
    form = predecode_conversion(gunzip, rows_params("tar", [field("image")], 5))
    assert form is not None
    assert undecoded(form) == predecode_conversion(gunzip, rows_params("tar", [field("image")], 0))
    assert undecoded(parquet) == parquet
    for other in (Conversion("parquet"), Conversion("gunzip+csv"), Conversion("gunzip", "tar")):
        assert predecode_conversion(other, "{}") is None
    forms = ("rows:{}", "gunzip+rows:{}", "", "gunzip", "parquet:rows")
    assert [is_ready(Conversion.parse(form)) for form in forms] == [
        True,
        True,
        False,
        False,
        False,
    ]
