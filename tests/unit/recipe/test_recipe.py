from __future__ import annotations

import subprocess
import sys

import pytest

from feedd.errors import BadRecipe, Internal
from feedd.recipe.params import CODECS, params_of
from feedd.recipe.recipe import (
    check_fields,
    default_fields,
    needs_measure,
    needs_resolve,
    parse_field,
    spec_of,
)
from feedd.values import FieldKind, FieldRecipe, TensorSpec
from tests.budget import PATIENT_S

SPECS = {
    "bytes": TensorSpec("x", FieldKind.RAGGED, "uint8", (), 1),
    "str": TensorSpec("x", FieldKind.TEXT, "uint8"),
    "json": TensorSpec("x", FieldKind.JSON, "uint8"),
    "int": TensorSpec("x", FieldKind.DENSE, "int64", (), 0),
    "float": TensorSpec("x", FieldKind.DENSE, "float32", (), 0),
    "image": TensorSpec("x", FieldKind.RAGGED, "uint8", (), 3),
    "image:raw": TensorSpec("x", FieldKind.RAGGED, "uint8", (), 1),
    "image:224x160": TensorSpec("x", FieldKind.DENSE, "uint8", (224, 160, 3), 3),
    "image:224x160:random": TensorSpec("x", FieldKind.DENSE, "uint8", (224, 160, 3), 3),
    "npy:float32:3,4": TensorSpec("x", FieldKind.DENSE, "float32", (3, 4), 2),
    "tensor:int16:2,3,4": TensorSpec("x", FieldKind.DENSE, "int16", (2, 3, 4), 3),
    "tokens:uint16:2049": TensorSpec("x", FieldKind.DENSE, "uint16", (2049,), 1),
}


@pytest.mark.parametrize("text", SPECS)
def test_every_short_form_has_the_spec_the_interface_promises(text: str) -> None:
    """The mini-language of the interface gives exactly these tensors."""
    assert spec_of(parse_field("x", text)) == SPECS[text]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("image:224x160", '{"decode": "image", "size": [224, 160]}'),
        (
            "image:8x9:random",
            '{"size": [8, 9], "augment": ["random_resized_crop", "flip"], "decode": "image", "from": ["x"]}',
        ),
        ("image:raw", '{"decode": "image", "raw": true}'),
        ("tensor:float32:3,2", '{"decode": "tensor", "shape": [3, 2], "dtype": "float32"}'),
        ("tokens:uint16:9", '{"decode": "tokens", "dtype": "uint16", "count": 9}'),
        (" int ", '{"decode": "int"}'),
    ],
)
def test_short_and_long_form_of_one_recipe_are_equal(short: str, long: str) -> None:
    """The fingerprint rests on canonical parameters, so how a recipe was written must not matter."""
    assert parse_field("x", short) == parse_field("x", long)


def test_alternatives_name_the_batch_key_and_the_sources() -> None:
    """The first alternative is the key in the batch; all are sources, lower-cased, in order."""
    assert parse_field("JPG;jpeg;png", "bytes") == FieldRecipe("JPG", ("jpg", "jpeg", "png"), "bytes")
    recipe = parse_field("picture", '{"decode": "image", "from": ["JPG", "png"]}')
    assert (recipe.name, recipe.sources) == ("picture", ("jpg", "png"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "foo", "bytes:3", "image:", "image:0x3", "image:3", "image:3x4x5", "image:3x4:flip", "image:99999x1"),
        *("{", "{}", "[]", '{"decode": 3}', '{"decode": ["int"]}', '{"decode": "int", "size": [1, 2]}'),
        *("tensor:float32", "tensor:f4:3", "tensor:float32:0", "tensor:float32:3,-1", "tensor:uint8:2000000,2000000"),
        *("tokens:uint16:many", "npy:float32:x", "npy::3", '{"decode": "image", "augment": ["flip"]}'),
        *('{"decode": "image", "size": [4, 4], "augment": ["flip", "flip"]}', '{"decode": "image", "from": []}'),
        *('{"decode": "image", "raw": true, "size": [4, 4]}', '{"decode": "image", "size": [4, 4], "augment": ["x"]}'),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(text: str) -> None:
    """A recipe error is a BadRecipe that names the field and says what is known, never another exception."""
    with pytest.raises(BadRecipe) as caught:
        parse_field("x", text)
    assert caught.value.object == "x"
    assert "expected" in str(caught.value) or "known" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ";", "jpg;", "__key__", ";png"])
def test_names_that_cannot_be_fields_are_refused(name: str) -> None:
    """A field is named by extensions; names with leading underscores are the pipeline's own."""
    with pytest.raises(BadRecipe, match="field name"):
        parse_field(name, "bytes")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("image:64", "did you mean 'image:64x64'?"),
        ("image:64:random", "did you mean 'image:64x64:random'?"),
        ("img", "did you mean 'image'?"),
        ("token:uint16:9", "did you mean 'tokens'?"),
        ("zzzzz", ""),
    ],
)
def test_a_near_miss_is_told_what_was_meant(text: str, hint: str) -> None:
    """A size of one number and a misspelled codec name what would be right; what is near nothing gets no guess."""
    with pytest.raises(BadRecipe) as caught:
        parse_field("x", text)
    assert caught.value.hint == hint


def test_unknown_codecs_list_the_known_ones() -> None:
    """Who mistypes a codec reads all there are."""
    with pytest.raises(BadRecipe) as caught:
        parse_field("x", "jpeg:3")
    assert all(codec in str(caught.value) for codec in CODECS)
    with pytest.raises(BadRecipe, match="codecs"):
        params_of(FieldRecipe("x", ("x",), "pickle"))
    with pytest.raises(BadRecipe, match="unknown field"):
        params_of(FieldRecipe("x", ("x",), "int", '{"unknown": 1}'))


def test_defaults_follow_the_extension() -> None:
    """Left out, fields decode by the last part of their extension; what is unknown stays bytes."""
    recipes = default_fields(("jpg", "cls", "txt", "json", "npy", "seg.png", "pth", "jpeg"))
    assert [(r.name, r.codec) for r in recipes] == [
        ("jpg", "image"),
        ("cls", "int"),
        ("txt", "str"),
        ("json", "json"),
        ("npy", "npy"),
        ("seg.png", "image"),
        ("pth", "bytes"),
    ]
    assert recipes[0].sources == ("jpg", "jpeg")


def test_missing_fields_list_what_the_data_has() -> None:
    """A wanted field that no sample has is an error that lists the fields there are."""
    check_fields([parse_field("png;jpg", "image")], ("jpg", "cls"))
    with pytest.raises(BadRecipe, match=r"expected one of jpg, cls, got png or webp"):
        check_fields([parse_field("png;webp", "image")], ("jpg", "cls"))
    with pytest.raises(BadRecipe, match="twice"):
        check_fields([parse_field("jpg", "image"), parse_field("jpg", "bytes")], ("jpg",))


def test_what_needs_data_says_so() -> None:
    """Only fields whose shape or dtype lies in the data ask for measuring or resolving."""
    measured = {text for text in (*SPECS, "npy") if needs_measure(parse_field("x", text))}
    resolved = {text for text in (*SPECS, "npy") if needs_resolve(parse_field("x", text))}
    assert measured == {"image", "npy"}
    assert resolved == {"npy"}
    with pytest.raises(Internal, match="resolved"):
        spec_of(parse_field("x", "npy"))


@pytest.mark.slow
def test_the_daemon_loads_no_image_library() -> None:
    """Recipes, codec registry and pool import neither cv2 nor simplejpeg: only workers that decode images pay."""
    code = (
        "import sys, feedd.recipe.recipe, feedd.workers.pool, feedd.codecs.codec_registry\n"
        "print([name for name in ('cv2', 'simplejpeg', 'torch') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENT_S)
    assert output.stdout.strip() == "[]"
