"""Imports torchvision beside a CPU torch, where its compiled operators cannot be loaded."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from typing import Any

_KEPT: list[Any] = []


def load_torchvision() -> bool:
    """Import it, if it is installed; return whether it is.

    An ordinary wheel is linked against CUDA. Its transforms and datasets need none of its operators, but the import
    describes two of them to torch, which must know their names.
    """
    if importlib.util.find_spec("torchvision") is None:
        return False
    import torch  # noqa: PLC0415 - write_peer needs none where there is no torchvision

    with contextlib.suppress(RuntimeError):  # the real ones are there
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # torch leaves it so
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
    importlib.import_module("torchvision")
    image: Any = importlib.import_module("torchvision.io.image")
    if not image._has_image_ops():
        package: Any = importlib.import_module("torchvision.io")
        package.decode_image = image.decode_image = _decode
    return True


def _decode(data: Any, mode: Any = None) -> Any:
    """Decode an image file with Pillow: uint8 ``[3, height, width]``, as torchvision's own decoder returns it."""
    import numpy as np  # noqa: PLC0415 - see above
    import torch  # noqa: PLC0415 - see above
    from PIL import Image  # noqa: PLC0415 - see above

    with Image.open(io.BytesIO(bytes(data.numpy()))) as file:
        return torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1)
