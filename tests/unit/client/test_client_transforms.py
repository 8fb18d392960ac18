"""Transforms of batches: torchvision's numbers for the same parameters; a resumed run draws parameters again."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import (
    BadOptionError,
    Cast,
    CenterCrop,
    CutMix,
    DeviceLoader,
    MixUp,
    Normalize,
    Ragged,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToChannelsLast,
)
from feedd_client.geometry import Box
from tests.bench.peers import HOW_TO_INSTALL, PEER_VENV
from tests.budget import PATIENT_S
from tests.fixtures import make_torchvision as oracle
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from feedd_client.transforms import TransformContext
    from tests.fakes.cuda.device import Cuda

EXPECTED = dict(np.load(oracle.PATH))
FLOATS = EXPECTED["to_float"]
BOXES = [Box(*one) for one in oracle.BOXES]
CALLS: dict[str, Callable[[Any], Any]] = {
    "horizontal_flip": lambda images: RandomHorizontalFlip().apply(images, oracle.FLIPPED),
    "vertical_flip": lambda images: RandomVerticalFlip().apply(images, oracle.FLIPPED),
    "random_crop": lambda images: RandomCrop(7, padding=2, fill=7).apply(images, oracle.CORNERS),
    "center_crop": lambda images: CenterCrop((7, 5)).apply(images),
    "center_crop_larger": lambda images: CenterCrop((12, 11)).apply(images),
    "resize": lambda images: Resize((6, 14)).apply(images),
    "resize_shorter": lambda images: Resize(5).apply(images),
    "random_resized_crop": lambda images: RandomResizedCrop((6, 7)).apply(images, BOXES),
}


def _images(kind: str) -> torch.Tensor:
    """Return images as batches hold them: uint8 with channels last, or floats with channels first."""
    return oracle.images() if kind == "uint8" else torch.from_numpy(FLOATS.copy())


def _planes(images: Any) -> np.ndarray[Any, Any]:
    found: torch.Tensor
    found = images if isinstance(images, torch.Tensor) else torch.stack(list(images))
    assert found.device.type == "cpu"
    planes: np.ndarray[Any, Any] = (found if found.is_floating_point() else found.movedim(-1, -3)).float().numpy()
    return planes


def _check(images: Any, name: str, unit: float) -> None:
    found, wanted = _planes(images), EXPECTED[name].astype(np.float32)
    assert found.shape == wanted.shape
    assert float(np.abs(found - wanted).max()) <= unit


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("name", CALLS)
def test_geometry_is_torchvisions(name: str, kind: str, listed: bool) -> None:
    """With the same parameters each pixel is torchvision's to one unit; images may be a tensor or a list."""
    images = _images(kind)
    before = images.clone()
    made = CALLS[name](list(images) if listed else images)
    _check(made, f"{name}_{kind}", 1.0 if kind == "uint8" else 2 * float(np.finfo(np.float32).eps))
    assert torch.equal(images, before)


@pytest.mark.parametrize("cuda", ["lazy", "random-0"], indirect=True)
@pytest.mark.parametrize("name", ["horizontal_flip", "random_crop", "center_crop_larger"])
def test_geometry_on_a_device(cuda: Cuda, name: str) -> None:
    """The same on a device: without waiting for it, and in the memory order that the images had."""
    images = _images("float").to("cuda")
    _check(CALLS[name](images).cpu(), f"{name}_float", 0.0)


def test_memory_order_stays() -> None:
    """Floats that were channels-last stay so, and others do not become so."""
    images = _images("float")
    for name in ("horizontal_flip", "random_crop"):
        assert CALLS[name](images).is_contiguous()
        ordered = CALLS[name](images.contiguous(memory_format=torch.channels_last))
        assert ordered.is_contiguous(memory_format=torch.channels_last)


def test_casts_are_torchvisions() -> None:
    """Normalize, and casts with and without scaling."""
    pixels = {"img": oracle.images(), "cls": oracle.labels()}
    scaled = Cast(torch.float32, scale=True, fields=["img"])(pixels)
    _check(scaled["img"].movedim(-1, -3), "to_float", 0.0)
    _check(Cast(torch.uint8, scale=True)(scaled)["img"], "to_uint8", 0.0)
    _check(Cast(torch.bfloat16, scale=True, fields=["img"])(pixels)["img"].movedim(-1, -3), "to_bfloat16", 0.0)
    halved = Cast(torch.float16)({**scaled, "ragged": Ragged(torch.zeros(2), torch.tensor([0, 2]))})
    assert (halved["img"].dtype, halved["cls"].dtype) == (torch.float16, torch.int64)
    assert (halved["ragged"].values.dtype, halved["ragged"].offsets.dtype) == (torch.float16, torch.int64)
    with pytest.raises(BadOptionError, match="jpg"):
        Cast(torch.float16, fields=["jpg"])(pixels)


def test_normalize_is_torchvisions() -> None:
    """In half precision to one unit; in float32 to torchvision's own error, and to one unit of the exact value."""
    pixels = {"img": oracle.images()}
    wanted = torch.from_numpy(EXPECTED["normalize"])
    for dtype in (torch.bfloat16, torch.float16):
        made = Normalize(oracle.MEAN, oracle.STD, dtype)(pixels)["img"]
        units = made.view(torch.int16).int() - wanted.to(dtype).view(torch.int16).int()
        assert int(units.abs().max()) <= 1
    made = Normalize(oracle.MEAN, oracle.STD)(pixels)["img"]
    mean, std = (torch.tensor(one, dtype=torch.float64) for one in (oracle.MEAN, oracle.STD))
    exact = (oracle.images().double() / 255 - mean) / std
    unit = 2 * float(np.finfo(np.float32).eps)  # of values from 2 to 4
    assert float((made - exact.movedim(-1, -3)).abs().max()) <= unit
    assert float((made - wanted).abs().max()) <= 4 * unit


def test_channels_last() -> None:
    """Images change their order in memory, and other tensors nothing."""
    batch = ToChannelsLast()({"img": _images("float"), "cls": oracle.labels()})
    assert batch["img"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch["img"], _images("float"))
    assert "ToChannelsLast" in repr(ToChannelsLast())


@pytest.mark.parametrize("soft", [False, True])
def test_mixing_is_torchvisions(soft: bool) -> None:
    """Images and labels are mixed as torchvision mixes them, from numbers or rows of probabilities."""
    labels = oracle.labels()
    given = torch.nn.functional.one_hot(labels, oracle.CLASSES).float() if soft else labels
    batch: dict[str, Any] = {"img": _images("float"), "cls": given, "__key__": ["a"]}
    classes = None if soft else oracle.CLASSES
    mixes: list[tuple[str, Any]] = [
        ("mixup", MixUp("cls", classes=classes).apply(batch, oracle.SHARE)),
        ("cutmix", CutMix("cls", classes=classes).apply(batch, Box(*oracle.BOX))),
    ]
    for name, mixed in mixes:
        _check(mixed["img"], name, 0.0)
        np.testing.assert_array_equal(mixed["cls"].numpy(), EXPECTED[f"{name}_labels"])
        assert mixed["__key__"] == ["a"]
    assert torch.equal(batch["img"], _images("float"))


def test_what_cannot_be_mixed_is_said() -> None:
    """uint8 images, missing labels and a missing number of classes are errors that say what to write."""
    batch = {"img": _images("float"), "cls": oracle.labels()}
    with pytest.raises(BadOptionError, match="Normalize in front of MixUp"):
        MixUp("cls", classes=5).apply({"img": oracle.images(), "cls": oracle.labels()}, 0.5)
    with pytest.raises(BadOptionError, match="label"):
        MixUp("label", classes=5).apply(batch, 0.5)
    with pytest.raises(BadOptionError, match="classes"):
        CutMix("cls").apply(batch, Box(0, 0, 1, 1))
    with pytest.raises(BadOptionError, match="above 0"):
        MixUp("cls", alpha=0)


def _drawn(seed: int, *, epochs: int = 1) -> list[Any]:
    transforms: list[Any] = [RandomHorizontalFlip(), RandomHorizontalFlip(), RandomCrop(5), MixUp("cls", classes=5)]
    source = [{"img": torch.from_numpy(FLOATS[:1].repeat(16, 0)), "cls": torch.zeros(16)} for _ in range(3)]
    loader = DeviceLoader(source, "cpu", transforms)
    loader.set_epoch(seed)
    return [batch["img"] for _ in range(epochs) for batch in loader]


def test_parameters_belong_to_epoch_and_step() -> None:
    """The same epoch draws the same parameters again; another epoch, step, image or transform draws others."""
    first, again, other = _drawn(0), _drawn(0), _drawn(1)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    assert not torch.equal(first[0], first[1])
    flips = [
        RandomHorizontalFlip().draw([(9, 9)] * 64, numbers)
        for numbers in (np.random.default_rng([7, 0]), np.random.default_rng([7, 1]))
    ]
    assert flips[0] != flips[1]
    assert 16 < sum(flips[0]) < 48


def test_each_transform_of_a_batch_draws_its_own() -> None:
    """Two transforms of one class draw different parameters, and a repeated batch the same ones again."""
    drawn: list[list[float]] = []

    def note(batch: dict[str, Any], context: TransformContext) -> dict[str, Any]:
        drawn.append(context.host_numbers().random(2).tolist())
        return batch

    for _ in range(2):
        for _batch in DeviceLoader([{"x": torch.zeros(1)}], "cpu", [note, note]):
            pass
    assert drawn[0] != drawn[1]
    assert drawn[:2] == drawn[2:]


def test_image_and_mask_are_cut_alike() -> None:
    """All image fields of a batch get the same parameters."""
    source = [{"img": oracle.images(), "mask": oracle.images()[..., :1], "name": "x"}]
    transforms = [RandomResizedCrop(8), RandomHorizontalFlip()]
    (batch,) = DeviceLoader(source, "cpu", transforms)
    assert torch.equal(batch["img"][..., :1], batch["mask"])
    assert batch["img"].shape == (4, 8, 8, 3)
    (named,) = DeviceLoader(source, "cpu", RandomCrop(8, fields=["img"]))
    assert named["mask"].shape == (4, 10, 8, 1)


def test_parts_lie_within_their_image() -> None:
    """Random parts have the sizes and places that their options say."""
    numbers = np.random.default_rng(1)
    boxes = RandomResizedCrop(8, scale=(0.1, 0.5)).draw([(100, 40)] * 300, numbers)
    assert all(0 <= box.top <= 100 - box.height and 0 <= box.left <= 40 - box.width for box in boxes)
    shares = [box.height * box.width / 4000 for box in boxes]
    assert 0.09 < min(shares) < 0.12
    assert max(shares) < 0.52
    (whole,) = RandomResizedCrop(8, scale=(5, 5)).draw(
        [(100, 10)], numbers
    )  # no part fits: as much as the ratio allows
    assert (whole.top, whole.left, whole.height, whole.width) == (43, 0, 13, 10)
    corners = RandomCrop(8, padding=1).draw([(8, 9)] * 200, numbers)
    assert {top for top, _ in corners} == {0, 1, 2}
    assert {left for _, left in corners} == {0, 1, 2, 3}
    with pytest.raises(BadOptionError, match=r"\(8, 9\)"):
        RandomCrop(11, padding=1).draw([(8, 9)], numbers)


def test_images_of_several_sizes_become_one_tensor() -> None:
    """A list from a decoder, or a Ragged of decoded images, is resized and cropped to one size."""
    images = [oracle.images()[0], oracle.images()[1, :7], oracle.images()[2, :, :6]]
    values = torch.cat([one.flatten() for one in images])
    offsets = torch.tensor([0, *np.cumsum([one.numel() for one in images])])
    ragged = Ragged(values, offsets, torch.tensor([one.shape for one in images]))
    made = []
    fields: list[Any] = [images, ragged]
    transforms: list[Any] = [Resize(8), CenterCrop(8)]
    for field in fields:
        (batch,) = DeviceLoader([{"img": field}], "cpu", transforms)
        assert batch["img"].shape == (3, 8, 8, 3)
        made.append(batch["img"])
        (batch,) = DeviceLoader([{"img": field}], "cpu", RandomResizedCrop(8))
        assert batch["img"].shape == (3, 8, 8, 3)
    assert torch.equal(made[0], made[1])


def test_a_batch_without_images_is_said() -> None:
    """A transform that finds nothing to change does not pass silently."""
    with pytest.raises(BadOptionError, match=r"cls: torch.int64 \[4\]"):
        CenterCrop(8)({"cls": oracle.labels()})
    with pytest.raises(BadOptionError, match="no such field"):
        CenterCrop(8, fields=["jpg"])({"img": oracle.images()})
    with pytest.raises(BadOptionError, match="probability"):
        RandomHorizontalFlip(1.5)
    assert repr(RandomHorizontalFlip(0.25)) == "RandomHorizontalFlip(p=0.25)"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(
    not [*PEER_VENV.glob("lib/python*/site-packages/torchvision")],
    reason=f"needs the peers' libraries: {HOW_TO_INSTALL}",
)
def test_the_expected_numbers_are_torchvisions(tmp_path: Path) -> None:
    """The numbers that the tests above compare with are what torchvision computes today."""
    file = tmp_path / "made.npz"
    command = [str(PEER_VENV / "bin" / "python"), "-m", "tests.fixtures.make_torchvision", str(file)]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=PATIENT_S)
    made = dict(np.load(file))
    assert set(made) == set(EXPECTED)
    for name, values in made.items():
        unit = 1.0 if values.dtype == np.uint8 else 1e-6
        assert np.abs(values.astype(np.float64) - EXPECTED[name]).max() <= unit, name
