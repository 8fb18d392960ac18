"""Padded fields: blocks as wide as they must be, with marks of what is a sample's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from feedd.errors import BadRecipe
from feedd.values import FieldKind
from tests.fakes.feeding import GatedStore, batches, feeding

if TYPE_CHECKING:
    from pathlib import Path

_TEXTS = (b"ab", b"", b"abcde", b"abc", b"x", b"yz", b"0123456789", b"q")


def _store(store: GatedStore) -> None:
    for shard in range(2):
        samples = [{"bin": text, "cls": str(n).encode()} for n, text in enumerate(_TEXTS[shard * 4 :][:4])]
        store.shard(shard, samples)


def _field(pad: dict[str, object], codec: str = "bytes") -> str:
    return json.dumps({"decode": codec, "pad": pad})


def _padded(text: bytes, length: int, value: int = 0) -> list[int]:
    return [*text[:length], *[value] * (length - len(text))]


async def test_to_the_longest(tmp_path: Path) -> None:
    """Each batch is as wide as its longest sample; the mask says what is a sample's own."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        session = await rig.open(fields=(("bin", _field({"to": "longest", "value": 7})), ("cls", "int")))
        assert [(spec.name, spec.kind) for spec in session.info.specs] == [
            ("bin", FieldKind.PADDED),
            ("bin_mask", FieldKind.PADDED),
            ("cls", FieldKind.DENSE),
        ]
        for at, batch in enumerate(await batches(session)):
            texts = _TEXTS[at * 4 :][:4]
            width = max(map(len, texts))
            assert batch.rows("bin") == [_padded(text, width, 7) for text in texts]
            assert batch.rows("bin_mask") == [[n < len(text) for n in range(width)] for text in texts]
            assert batch.ints() == [0, 1, 2, 3]


async def test_buckets_truncation_and_lengths(tmp_path: Path) -> None:
    """The smallest length that suffices; what is longer than the largest is cut off where that was asked for."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        pad = {"to": [2, 5, 8], "truncate": True, "mask": False, "lengths": True}
        session = await rig.open(fields=(("bin", _field(pad)),), batch_size=2, keys=True)
        made = await batches(session)
        assert [len(batch.rows("bin")[0]) for batch in made] == [2, 5, 2, 8]
        assert [batch.rows("bin_length") for batch in made] == [[2, 0], [5, 3], [1, 2], [8, 1]]
        assert made[3].rows("bin") == [_padded(b"0123456789", 8), _padded(b"q", 8)]
        assert made[3].texts("__key__") == [b"01002", b"01003"]


async def test_too_long_is_bad_where_nothing_is_cut(tmp_path: Path) -> None:
    """A sample longer than any length is a bad one, and does not widen its batch."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        fields = (("bin", _field({"to": [4, 5]})), ("cls", "int"))
        session = await rig.open(fields=fields, bad_samples="skip", bad_samples_max=1)
        first, second = await batches(session)
        assert (first.ready.bad_samples, second.ready.bad_samples) == (0, 1)
        assert second.rows("bin") == [_padded(text, 4) for text in (b"x", b"yz", b"q")]
        assert second.rows("bin_mask") == [[n < length for n in range(4)] for length in (1, 2, 1)]
        assert second.ints() == [0, 1, 3]


async def test_several_dimensions(tmp_path: Path) -> None:
    """Further dimensions are as large as the batch's largest; the mask is over all but the last."""
    async with feeding(tmp_path) as rig:
        arrays = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) + 1 for n in (3, 1, 0, 2)]
        rig.store.shard(0, [{"npy": _npy(array)} for array in arrays])
        pad = {"to": [4], "value": -1, "lengths": True}
        session = await rig.open(fields=(("npy", _field(pad, "npy")),))
        (batch,) = await batches(session)
        expected = np.full((4, 4, 2), -1, np.float32)
        for row, array in enumerate(arrays):
            expected[row, : len(array)] = array
        assert batch.rows("npy") == expected.tolist()
        assert batch.rows("npy_mask") == [[n < len(array) for n in range(4)] for array in arrays]
        assert batch.rows("npy_length") == [list(array.shape) for array in arrays]


async def test_pictures_of_their_own_size(tmp_path: Path) -> None:
    """Pictures are padded to the batch's highest and widest; the mask is over rows and columns."""
    async with feeding(tmp_path) as rig:
        draw = np.random.default_rng(3)
        pictures = [draw.integers(0, 255, (*size, 3), np.uint8) for size in ((4, 9), (7, 2), (5, 5))]
        encoded = [cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes() for picture in pictures]
        rig.store.shard(0, [{"png": data} for data in [*encoded, encoded[0][:60]]])
        session = await rig.open(fields=(("png", _field({"value": 255}, "image")),), bad_samples_max=1)
        (batch,) = await batches(session)
        block, mask = np.array(batch.rows("png"), np.uint8), np.array(batch.rows("png_mask"))
        assert (block.shape, mask.shape) == ((3, 7, 9, 3), (3, 7, 9))
        for row, picture in enumerate(pictures):
            height, width, _ = picture.shape
            assert np.array_equal(block[row, :height, :width], picture)
            assert mask[row, :height, :width].all()
            assert mask[row].sum() == height * width
            assert (block[row][~mask[row]] == 255).all()


async def test_one_schema(tmp_path: Path) -> None:
    """A sample of another dtype or number of dimensions than the first shard's is a bad one."""
    async with feeding(tmp_path) as rig:
        good, other = np.ones(2, np.float32), np.ones(2, np.float64)
        rig.store.shard(0, [{"npy": _npy(array)} for array in (good, other, good.reshape(1, 2), good)])
        for text in ("npy", _field({}, "npy")):
            session = await rig.open(fields=(("npy", text),), bad_samples_max=2)
            (batch,) = await batches(session)
            assert (batch.ready.rows, batch.ready.bad_samples) == (2, 2)


async def test_wider_than_its_slot(tmp_path: Path) -> None:
    """A batch that turns out wider than the first shard promised travels by itself, whole."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"bin": b"ab"}] * 4)
        rig.store.shard(1, [{"bin": b"c" * 9000}, {"bin": b"d"}, {"bin": b""}, {"bin": b"ef"}])
        session = await rig.open(fields=(("bin", _field({})),))
        _, wide = await batches(session)
        assert wide.ready.oversize is not None
        assert wide.rows("bin") == [_padded(text, 9000) for text in (b"c" * 9000, b"d", b"", b"ef")]
        del wide  # its memory counts until then


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"decode": "str", "pad": {}}', "differ in shape"),
        ('{"decode": "int", "pad": {}}', "differ in shape"),
        ('{"decode": "bytes", "pad": {"to": 0}}', "lengths of 1"),
        ('{"decode": "bytes", "pad": {"to": [8, 4]}}', "ascending"),
        ('{"decode": "bytes", "pad": {"to": []}}', "1 to 256"),
        ('{"decode": "bytes", "pad": {"value": -1}}', "uint8 can hold"),
        ('{"decode": "bytes", "pad": {"value": 1e400}}', "JSON|uint8 can hold"),
        ('{"decode": "bytes", "pad": {"truncate": true}}', "together with truncate"),
        ('{"decode": "bytes", "pad": {"width": 3}}', "width"),
        ('{"decode": "bytes", "pad": 3}', "pad"),
    ],
)
async def test_what_cannot_be_padded_is_said(tmp_path: Path, text: str, problem: str) -> None:
    """Recipes that make no sense are refused by name when a session is opened."""
    async with feeding(tmp_path) as rig:
        _store(rig.store)
        with pytest.raises(BadRecipe, match=problem):
            await rig.open(fields=(("bin", text),))


async def test_names_do_not_collide(tmp_path: Path) -> None:
    """A field that has the name of another one's mask is an error, not a mix-up."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"bin": b"x", "bin_mask": b"1"}])
        with pytest.raises(BadRecipe, match="bin_mask"):
            await rig.open(fields=(("bin", _field({})), ("bin_mask", "int")))


def _npy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()
