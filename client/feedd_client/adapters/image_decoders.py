"""Decoders of ``"image:raw"`` for ``DeviceLoader(decode=...)``: nvImageCodec, torchcodec and torchvision.

Each takes the encoded bytes from shared memory, and returns uint8 images ``[height, width, 3]`` in a list, because
images may differ in size. ``RandomResizedCrop``, or ``Resize`` and ``CenterCrop``, then make one tensor of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.dlpack import from_dlpack

from feedd_client.errors import BadOptionError, BadSampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd_client.values import Ragged

_JPEG: Final = (0xFF, 0xD8)


class TorchcodecDecoder:
    """Decodes JPEG on the device with torchcodec 0.16 or newer; other formats on the CPU."""

    def __call__(self, encoded: Ragged, device: torch.device) -> list[torch.Tensor]:
        """Return the images of a field."""
        decoders = importlib.import_module("torchcodec.decoders")
        return _decoded(
            files_of(encoded),
            device,
            lambda files: decoders.decode_jpeg(files, mode="RGB", device=device),
            lambda file: decoders.decode_image(file, mode="RGB"),
        )


class TorchvisionDecoder:
    """Decodes JPEG on the device with ``torchvision.io``; other formats on the CPU."""

    def __call__(self, encoded: Ragged, device: torch.device) -> list[torch.Tensor]:
        """Return the images of a field."""
        io = importlib.import_module("torchvision.io")
        mode = io.ImageReadMode.RGB
        return _decoded(
            files_of(encoded),
            device,
            lambda files: io.decode_jpeg(files, mode=mode, device=device),
            lambda file: io.decode_image(file, mode=mode),
        )


class NvImageCodecDecoder:
    """Decodes JPEG, JPEG 2000, TIFF, PNG, WebP and others on a CUDA device with nvImageCodec."""

    def __init__(self) -> None:
        self._decoders: dict[int, Any] = {}

    def __call__(self, encoded: Ragged, device: torch.device) -> list[torch.Tensor]:
        """Return the images of a field.

        Raises:
            BadOptionError: the device is no CUDA device.
            BadSampleError: nvImageCodec cannot decode a file.
        """
        if device.type != "cuda":
            raise BadOptionError(f"expected a CUDA device for nvImageCodec, got {device}", object="decode")
        codec = importlib.import_module("nvidia.nvimgcodec")
        decoder = self._decoders.get(device.index)
        if decoder is None:
            decoder = self._decoders[device.index] = codec.Decoder(device_id=device.index)
        parameters = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)
        stream = torch.cuda.current_stream(device)
        files = [file.numpy() for file in files_of(encoded)]
        found = decoder.decode(files, params=parameters, cuda_stream=stream.cuda_stream)
        for row, image in enumerate(found):
            if image is None:
                raise BadSampleError("expected an image that nvImageCodec can decode, got none", object=f"row {row}")
        # copied: torch's allocator does not protect the codec's memory from reuse while the trainer reads it
        return [from_dlpack(image).clone() for image in found]


def files_of(encoded: Ragged) -> list[torch.Tensor]:
    """Return each sample's bytes as a uint8 tensor on the CPU that shares the field's memory."""
    ends = encoded.offsets.tolist()
    return [encoded.values[ends[row] : ends[row + 1]] for row in range(len(encoded))]


def _decoded(
    files: Sequence[torch.Tensor],
    device: torch.device,
    jpegs: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    other: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Decode JPEG files together and others one by one; return images with channels last."""
    together = [row for row, file in enumerate(files) if tuple(file[:2].tolist()) == _JPEG]
    made = dict(zip(together, jpegs([files[row] for row in together]) if together else [], strict=True))
    images = [made[row] if row in made else other(file).to(device) for row, file in enumerate(files)]
    return [image.movedim(0, -1) for image in images]
