"""One suite for every codec: what a SampleCodec must do with good and with broken samples."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadSample
from feedd.recipe import tokenizers
from feedd.recipe.params import CODECS
from feedd.recipe.recipe import parse_field, spec_of, with_encodings
from feedd.shard_index import ShardIndex
from feedd.values import FieldKind
from tests.budget import budget
from tests.fakes.files import npy
from tests.fakes.sounds import sines, sound
from tests.fakes.tars import jpeg, natural_image
from tests.fakes.texts import word_tokenizer
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec
    from feedd.values import FieldRecipe

GUARD = 64


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an RGB image as PNG."""
    ok, data = cv2.imencode(".png", image[:, :, ::-1])
    assert ok
    return data.tobytes()


PICTURE = natural_image(np.random.default_rng(5), 60, 80)


def encoded(extension: str) -> bytes:
    """Return the picture in another format."""
    ok, data = cv2.imencode(extension, PICTURE[:, :, ::-1])
    assert ok
    return data.tobytes()


TONES = (sines(900, 8000, 300, 200) * 30_000).astype(np.int16)
WAVE, FLAC, OGG, MP3 = (sound(TONES, 8000, kind) for kind in ("WAV", "FLAC", "OGG", "MP3"))
WORDS = '{"decode": "tokenize", "tokenizer": "words.json"}'
VARINTS = b"\x01\xac\x02" + b"\xff" * 9 + b"\x01"  # 1, 300, -1
FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)


LINE = b'{"a": "gr\\u00fcn", "b": [[1, 2], [3, 4]], "c": "a b"}'


def _inside(codec: str, key: str, more: str = "") -> str:
    return f'{{"decode": "{codec}", "key": {key}{", " if more else ""}{more}}}'


@dataclass(frozen=True)
class Elsewhere:
    """A file of tests that compare the values themselves: a tolerance or a picture is more than a line here."""

    path: str


IMAGES = Elsewhere("tests/unit/codecs/test_image_codec.py")  # JPEG and scaled pictures: against other decoders
PICTURES = Elsewhere("tests/unit/codecs/test_picture.py")  # the rarer formats
TRANSFORMS = Elsewhere("tests/unit/codecs/test_transforms.py")
SOUNDS = Elsewhere("tests/unit/codecs/test_audio.py")


@dataclass(frozen=True)
class Case:
    """A recipe, a good sample and its value or where that is checked, and samples that must be refused.

    ``stored`` is how the data stores it.
    """

    recipe: str
    good: bytes
    value: object
    bad: tuple[bytes, ...] = ()
    stored: str = ""

    @property
    def parsed(self) -> FieldRecipe:
        """The recipe, once a shard has told how the field is stored."""
        cell = np.zeros((1, 1), np.int64)
        index = ShardIndex(("x",), cell, cell, b"0", np.ones(1, np.int64), (self.stored,))
        (recipe,) = with_encodings((parse_field("x", self.recipe),), index)
        return recipe


CASES = {
    "bytes": Case("bytes", b"\0\xffany", np.frombuffer(b"\0\xffany", np.uint8)),
    "bytes-empty": Case("bytes", b"", np.zeros(0, np.uint8)),
    "str": Case("str", "grün".encode(), np.frombuffer("grün".encode(), np.uint8), (b"\xff", b"ab\xc3")),
    "json": Case("json", b'{"a": [1]}', np.frombuffer(b'{"a": [1]}', np.uint8), (b"", b"{", b"\xff", b"[1]]")),
    "json-nan": Case("json", b"[NaN]", np.frombuffer(b"[NaN]", np.uint8), (b"[" * 100_000,)),
    "int": Case("int", b" -42\n", np.int64(-42), (b"", b"1.5", b"x", b"1_000", b"9223372036854775808", b"1" * 5000)),
    "int-largest": Case("int", b"9223372036854775807", np.int64(2**63 - 1), (b"\xd9\xa3",)),
    "int-classes": Case(
        '{"decode": "int", "classes": ["cat", "gr\\u00fcn", "7"]}',
        " grün\n".encode(),
        np.int64(1),
        (b"", b"ca", b"2", b" " * 99),
    ),
    "int-class-of-text": Case('{"decode": "int", "classes": ["a", "7"]}', b"7", np.int64(1), (b"\xff",), "text"),
    "int-class-one-hot": Case(
        '{"decode": "int", "classes": ["a", "b"], "transforms": [{"op": "one_hot", "classes": 2, "dtype": "uint8"}]}',
        b"b",
        np.array([0, 1], np.uint8),
        (b"c",),
    ),
    "float": Case("float", b"0.1\n", np.float32(0.1), (b"", b"x", b"1_0.0", b"0" * 100)),
    "float-over": Case("float", b"-1e300", np.float32(-np.inf)),
    "npy-dense": Case("npy:float32:3,4", npy(FLOATS), FLOATS, (b"", npy(FLOATS.T), npy(FLOATS.astype("f8")))),
    "npy-orders": Case("npy:float32:3,4", npy(np.asfortranarray(FLOATS.astype(">f4"))), FLOATS),
    "npy-scalar": Case("npy:int64:", npy(np.array(7)), np.array(7), (npy(np.array([7])),)),
    "npy-ragged": Case('{"decode": "npy", "dtype": "float32", "ndim": 2}', npy(FLOATS), FLOATS, (npy(FLOATS[0]),)),
    "npy-bool": Case("npy:bool:2", npy(np.array([True, False])), np.array([True, False])),
    "tensor": Case(
        "tensor:float32:3,4", FLOATS.tobytes(), FLOATS, (b"", FLOATS.tobytes()[1:], FLOATS.tobytes() + b"x")
    ),
    "tokens": Case("tokens:uint16:5", bytes(range(10)), np.frombuffer(bytes(range(10)), "<u2"), (b"123",)),
    "array": Case("array", FLOATS.tobytes(), FLOATS.reshape(-1), (b"123",), "float32[]"),
    "array-varint": Case(
        "array", VARINTS, np.array([1, 300, -1], np.int64), (b"\x80", b"\x80" * 10 + b"\1"), "varint[]"
    ),
    "tensor-varint": Case(
        "tensor:int16:3", VARINTS, np.array([1, 300, -1], np.int16), (b"\1", b"\x80\x80\4\1\1"), "varint[]"
    ),
    "tensor-stored": Case("tensor:float32:12", FLOATS.tobytes(), FLOATS.reshape(-1), (b"1234",), "float32[]"),
    "int-stored": Case("int", b"\xfe\xff", np.int64(-2), (b"", b"1"), "int16"),
    "int-unsigned": Case("int", b"\xff" * 7 + b"\x7f", np.int64(2**63 - 1), (b"\xff" * 8,), "uint64"),
    "int-varint": Case("int", b"\xac\x02", np.int64(300), (b"", b"\x80", b"\1\1"), "varint"),
    "int-of-one": Case("int", b"\x07", np.int64(7), (b"", b"\1\2"), "varint[]"),
    "float-stored": Case("float", np.float64(1e300).tobytes(), np.float32(np.inf), (b"1234",), "float64"),
    "float-of-one": Case("float", np.float32(0.5).tobytes(), np.float32(0.5), (b"", b"12345678"), "float32[]"),
    "image": Case("image", png(PICTURE), PICTURE, (b"", b"GIF89a" + bytes(50), png(PICTURE)[:-20])),
    "image-jpeg": Case("image", jpeg(PICTURE), IMAGES, (jpeg(PICTURE)[:-2], jpeg(PICTURE)[:900], b"\xff\xd8\xff")),
    "image-raw": Case("image:raw", jpeg(PICTURE), np.frombuffer(jpeg(PICTURE), np.uint8)),
    "image-fitted": Case("image:32x24", jpeg(PICTURE), IMAGES, (b"", jpeg(PICTURE)[:-2], jpeg(PICTURE)[:900])),
    "image-same": Case("image:60x80", png(PICTURE), PICTURE, (png(PICTURE)[:-20], png(PICTURE)[:30])),
    "image-random": Case("image:32x24:random", png(PICTURE), IMAGES, (png(PICTURE)[:200],)),
    "image-tiff": Case("image", encoded(".tiff"), PICTURE, (encoded(".tiff")[:-20], b"II*\0", b"MM\0+" + bytes(9))),
    "image-jp2": Case("image:32x24", encoded(".jp2"), PICTURES, (encoded(".jp2")[:60], encoded(".jp2")[:120])),
    "image-avif": Case("image:32x24", encoded(".avif"), PICTURES, (encoded(".avif")[:40], encoded(".avif")[:300])),
    "image-webp": Case(
        '{"decode": "image", "mode": "unchanged", "orient": true}', encoded(".webp"), PICTURES, (b"RIFF",)
    ),
    "image-deep": Case(
        '{"decode": "image", "dtype": "uint16", "orient": true}',
        png(PICTURE),
        PICTURE.astype(np.uint16) * 257,
        (png(PICTURE)[:-20], jpeg(PICTURE)[:-2]),
    ),
    "image-transforms": Case(
        '{"decode": "image", "orient": true, "mode": "gray", "transforms": [{"op": "random_resized_crop", "size": 16}, '
        '"horizontal_flip", {"op": "rand_augment"}, {"op": "normalize", "mean": [0.5], "std": [0.5]}]}',
        jpeg(PICTURE),
        TRANSFORMS,
        (b"", jpeg(PICTURE)[:-2]),
    ),
    "image-resized": Case(
        '{"decode": "image", "mode": "unchanged", "transforms": [{"op": "resize", "size": 20}, "channels_first"]}',
        encoded(".tiff"),
        TRANSFORMS,
        (encoded(".tiff")[:90],),
    ),
    "audio": Case('{"decode": "audio", "dtype": "int16"}', WAVE, TONES.T, (WAVE[:-1], WAVE[:20], b"")),
    "audio-flac": Case(
        '{"decode": "audio", "rate": 4000, "mono": true, "dtype": "int16"}', FLAC, SOUNDS, (FLAC[:-60], FLAC[:30])
    ),
    "audio-cut": Case(
        '{"decode": "audio", "rate": 8000, "channels": 2, "seconds": 0.05, "random": true}', OGG, SOUNDS, (OGG[:99],)
    ),
    "audio-mp3": Case('{"decode": "audio", "mono": true}', MP3, SOUNDS, (b"\xff\xfb",)),
    "tokenize": Case(WORDS, b"a b c", np.array([1, 2, 0], np.int32), (b"\xff", b"a \xc3")),
    "tokenize-padded": Case(
        WORDS[:-1] + ', "max_length": 4, "fill": 8}', b"b", np.array([2, 8, 8, 8], np.int32), (b"a\xffb",)
    ),
    "int-one-hot": Case(
        '{"decode": "int", "transforms": [{"op": "one_hot", "classes": 3, "dtype": "int8"}]}',
        b"1",
        np.array([0, 1, 0], np.int8),
        (b"3", b"-1", b"x"),
    ),
    "int-cast": Case(
        '{"decode": "int", "transforms": [{"op": "cast", "dtype": "uint8"}]}',
        b"\x07\0",
        np.uint8(7),
        (b"\0\1",),
        "int16",
    ),
    "float-wide": Case("float:float64", b"0.1", np.float64(0.1), (b"", b"x")),
    "str-inside": Case(
        _inside("str", '"a"'),
        LINE,
        np.frombuffer("grün".encode(), np.uint8),
        (b"", b"{}", b'{"a": 1}', b'{"a": "\xff"}'),
    ),
    "json-inside": Case(
        _inside("json", '["b"]'), LINE, np.frombuffer(b"[[1, 2], [3, 4]]", np.uint8), (b"[]", LINE[:-1])
    ),
    "int-inside": Case(
        _inside("int", '["b", 1, 0]'), LINE, np.int64(3), (b'{"b": [[1], [2.5]]}', b'{"b": [0, [null]]}')
    ),
    "float-inside": Case(_inside("float", '["b", 0, 1]'), LINE, np.float32(2), (b'{"b": [[1, "2"]]}', b'{"b": [[1]]}')),
    "array-inside": Case(
        _inside("array", '["b", 1]', '"dtype": "int8"'), LINE, np.array([3, 4], np.int8), (b'{"b": [0, [128]]}',)
    ),
    "tensor-inside": Case(
        _inside("tensor", '"b"', '"dtype": "float32", "shape": [2, 2]'),
        LINE,
        np.array([[1, 2], [3, 4]], np.float32),
        (b'{"b": [[1, 2], [3]]}', b'{"b": [1, 2, 3, 4]}', b'{"b": [["1", 2], [3, 4]]}'),
    ),
    "tokenize-inside": Case(
        _inside("tokenize", '"c"', '"tokenizer": "words.json", "end": 9'),
        LINE,
        np.array([1, 2, 9], np.int32),
        (b"a b",),
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Offer the tokenizer of the cases."""
    folder = tmp_path_factory.mktemp("tokenizers")
    word_tokenizer(folder / "words.json", ["a", "b"])
    with tokenizers.offered(folder):
        yield


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each case in turn."""
    return CASES[request.param]


def decode(codec: SampleCodec, data: bytes, seed: int = 7, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Decode into the middle of guarded memory, as a row of a slot is; nothing outside the row may change."""
    spec = codec.spec("x")
    view = memoryview(data).toreadonly()
    dense = spec.shape if spec.kind is FieldKind.DENSE else codec.measure(view)
    wanted = dense if shape is None else shape
    size_bytes = int(np.prod(wanted, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
    memory = np.full(size_bytes + 2 * GUARD, 0xA5, np.uint8)
    out: NDArray[Any] = np.ndarray(wanted, spec.dtype, memory.data, GUARD)
    try:
        codec.decode(view, out, seed)
    finally:
        assert (memory[:GUARD] == 0xA5).all()
        assert (memory[GUARD + size_bytes :] == 0xA5).all()
    return out


def test_every_codec_has_a_case() -> None:
    """A codec added to the registry must join this suite."""
    assert {parse_field("x", case.recipe).codec for case in CASES.values()} == set(CODECS)


def test_the_spec_is_the_recipes(case: Case) -> None:
    """Codec and recipe agree on what the field looks like, so daemon and worker do."""
    recipe = case.parsed
    assert make(recipe).spec("x") == spec_of(recipe)


def test_good_samples_have_their_value(case: Case) -> None:
    """The row holds exactly the value, in the dtype of the spec; one that is compared elsewhere holds something."""
    result = decode(make(case.parsed), case.good)
    if isinstance(case.value, Elsewhere):
        assert (ROOT / case.value.path).is_file()
        assert result.min() < result.max()
    else:
        np.testing.assert_array_equal(result, np.asarray(case.value))


def test_decoding_is_a_function_of_bytes_and_seed(case: Case) -> None:
    """Twice the same bytes and seed, by codecs with different pasts, give the same row."""
    recipe = case.parsed
    used = make(recipe)
    for seed in (1, 2, 2**64 - 1):
        decode(used, case.good, seed)
        np.testing.assert_array_equal(decode(used, case.good, 99), decode(make(recipe), case.good, 99))


def test_measure_tells_the_decoded_shape(case: Case) -> None:
    """What measure says is what decode fills; any other shape is refused."""
    codec = make(case.parsed)
    measured = codec.measure(memoryview(case.good))
    assert decode(codec, case.good).shape == measured
    if codec.spec("x").kind is not FieldKind.DENSE:
        with pytest.raises(BadSample, match="expected"):
            decode(codec, case.good, shape=tuple(side + 1 for side in measured))


def test_bad_samples_are_refused(case: Case) -> None:
    """What is not what the recipe says is BadSample with expected and got, in measure or in decode."""
    codec = make(case.parsed)
    for data in case.bad:
        with pytest.raises(BadSample, match=r"expected .* got"):
            decode(codec, data)


@settings(max_examples=budget(150))
@given(data=st.data())
def test_damage_is_refused_or_decoded(data: st.DataObject) -> None:
    """Damaged samples are BadSample or a value of the right shape; never another error, never outside the row."""
    case = data.draw(st.sampled_from(list(CASES.values())))
    sample = bytearray(case.good)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sample)))
        sample[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    _decode_or_refuse(make(case.parsed), bytes(sample))


@settings(max_examples=budget(60))
@given(
    head=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\x93NUMPY\x01\0", b"BM", b"RIFF"]),
    tail=st.binary(),
)
def test_noise_is_refused_or_decoded(head: bytes, tail: bytes) -> None:
    """Arbitrary bytes behind the magic numbers never raise anything but BadSample."""
    for case in CASES.values():
        _decode_or_refuse(make(case.parsed), head + tail)


def _decode_or_refuse(codec: SampleCodec, data: bytes) -> None:
    with contextlib.suppress(BadSample):
        decode(codec, data)
