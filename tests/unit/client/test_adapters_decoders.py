"""Decoders of encoded images, over stand-ins with the interfaces that the libraries document, and the real ones."""

from __future__ import annotations

import importlib
import importlib.util
import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image

from feedd_client import BadOptionError, BadSampleError, CenterCrop, DeviceLoader, Ragged, Resize
from feedd_client.adapters import NvImageCodecDecoder, TorchcodecDecoder, TorchvisionDecoder, image_decoders
from tests.fakes import other_libraries as fakes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.cuda.device import Cuda

JPEGS = [fakes.encoded(number, height=4 + number % 3) for number in range(8)]
MEMBERS: dict[str, Any] = {"decode_jpeg": fakes.decode_jpeg, "decode_image": fakes.decode_image}
LIBRARIES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "torchcodec": (TorchcodecDecoder, "torchcodec.decoders", MEMBERS),
    "torchvision": (
        TorchvisionDecoder,
        "torchvision.io",
        {**MEMBERS, "ImageReadMode": SimpleNamespace(RGB="RGB")},
    ),
}


def ragged(files: list[bytes]) -> Ragged:
    """Return what a batch holds of a field of these files."""
    ends = [0]
    for file in files:
        ends.append(ends[-1] + len(file))
    return Ragged(torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8), torch.tensor(ends))


def _batches(files: list[bytes]) -> list[dict[str, Any]]:
    return [{"jpg": ragged(files[start : start + 4]), "cls": torch.arange(4)} for start in range(0, len(files), 4)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_files_become_images(name: str) -> None:
    """Each file becomes its image; formats other than JPEG are decoded one by one; a resize makes one tensor."""
    kind, module, members = LIBRARIES[name]
    files = [*JPEGS[:5], fakes.encoded(77, "png"), *JPEGS[6:]]
    with fakes.installed(module, **members):
        images = [one for batch in DeviceLoader(_batches(files), "cpu", decode={"jpg": kind()}) for one in batch["jpg"]]
        transforms: list[Any] = [Resize(4), CenterCrop(4)]
        resized = list(DeviceLoader(_batches(files), "cpu", transforms, decode={"jpg": kind()}))
    assert [tuple(one.shape) for one in images[:4]] == [(4, 4, 3), (5, 4, 3), (6, 4, 3), (4, 4, 3)]
    assert [int(one.unique()) for one in images] == [0, 1, 2, 3, 4, 77, 6, 7]
    assert [batch["jpg"][:, 0, 0, 0].tolist() for batch in resized] == [[0, 1, 2, 3], [4, 77, 6, 7]]


@pytest.mark.parametrize("cuda", ["lazy", "random-0"], indirect=True)
def test_nvimagecodec_works_on_the_copy_stream(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec gets the copy stream, its images become the trainer's, and a file that it refuses is named."""
    streams: list[int] = []
    monkeypatch.setattr(image_decoders, "from_dlpack", lambda image: image)
    lent: list[tuple[int, torch.Tensor]] = []

    def on_device(image: torch.Tensor) -> torch.Tensor:
        for call, one in lent:
            if call < len(streams):
                one.fill_(99)  # the codec uses its memory again
        lent.append((len(streams), image.to("cuda")))
        return lent[-1][1]

    members = fakes.nvimgcodec(on_device, streams)
    with fakes.installed("nvidia.nvimgcodec", **members):
        decoder = NvImageCodecDecoder()
        kept = list(DeviceLoader(_batches(JPEGS), "cuda", decode={"jpg": decoder}))
        assert [int(one[0, 0, 0]) for batch in kept for one in batch["jpg"]] == list(range(8))
        with pytest.raises(BadSampleError, match="row 2"):
            list(DeviceLoader(_batches([*JPEGS[:2], b"soup", JPEGS[3]]), "cuda", decode={"jpg": decoder}))
        with pytest.raises(BadOptionError, match="CUDA"):
            list(DeviceLoader(_batches(JPEGS), "cpu", decode={"jpg": decoder}))
    assert set(streams) != {0}
    assert len(set(streams)) == 1


# ---------------------------------------------------------------------- for real


def _picture(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40 + number, 32), (number * 20, 100, 200)).save(out, "JPEG", quality=95)
    return out.getvalue()


def _real(name: str) -> Any:
    library = name.partition(".")[0] if name != "nvidia.nvimgcodec" else name
    try:
        found = importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        found = False
    return [
        pytest.mark.gpu,
        pytest.mark.skipif(not (found and torch.cuda.is_available()), reason=f"needs a GPU, {name}"),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(TorchcodecDecoder, marks=_real("torchcodec.decoders")),
        pytest.param(TorchvisionDecoder, marks=_real("torchvision.io")),
        pytest.param(NvImageCodecDecoder, marks=_real("nvidia.nvimgcodec")),
    ],
)
@pytest.mark.usefixtures("_real_cuda_runs")
def test_a_real_gpu_decodes_pictures(kind: Callable[[], Any]) -> None:
    """Pictures of one colour come back in that colour, in their sizes, while slots are used again."""
    files = [_picture(number) for number in range(12)]
    batches = list(DeviceLoader(_batches(files), "cuda", decode={"jpg": kind()}))
    images = [one for batch in batches for one in batch["jpg"]]
    assert [tuple(one.shape) for one in images] == [(32, 40 + number, 3) for number in range(12)]
    for number, one in enumerate(images):
        assert (one.float().mean((0, 1)).cpu() - torch.tensor([number * 20, 100, 200])).abs().max() < 4
