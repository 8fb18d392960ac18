"""Stand-ins for libraries that need a GPU or are too large to install: their documented interfaces, on the CPU.

``installed`` puts one in the place of a module for the time of a test.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIZE: Final = 4
"""Of images, in pixels."""
_HEADS: Final = {b"\xff\xd8": "jpeg", b"\x89P": "png"}


@contextlib.contextmanager
def installed(name: str, **members: Any) -> Iterator[ModuleType]:
    """Put a module in place, with its packages."""
    parts = name.split(".")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    before = {one: sys.modules.get(one) for one in names}
    made = [ModuleType(one) for one in names]
    made[-1].__dict__.update(members)
    for package, one in zip([None, *made], made, strict=False):
        if package is not None:
            setattr(package, one.__name__.rpartition(".")[2], one)
        sys.modules[one.__name__] = one
    try:
        yield made[-1]
    finally:
        for place, module in before.items():
            if module is None:
                del sys.modules[place]
            else:
                sys.modules[place] = module


# ---------------------------------------------------------------------- encoded images


def encoded(number: int, kind: str = "jpeg", height: int = SIZE) -> bytes:
    """Return a file that the decoders below understand: an image of this height, all of one value."""
    (head,) = [head for head, name in _HEADS.items() if name == kind]
    return head + bytes([number % 256, height])


def image(data: bytes, *, channels_first: bool) -> torch.Tensor:
    """Return the image of such a file."""
    value, height = data[2], data[3]
    shape = (3, height, SIZE) if channels_first else (height, SIZE, 3)
    return torch.full(shape, value, dtype=torch.uint8)


def _bytes_of(file: torch.Tensor) -> bytes:
    assert (file.dtype, file.ndim, file.device.type) == (torch.uint8, 1, "cpu")
    return file.numpy().tobytes()


def decode_jpeg(files: Sequence[torch.Tensor], *, mode: Any, device: Any) -> list[torch.Tensor]:
    """Stand for ``torchcodec.decoders.decode_jpeg`` and torchvision's."""
    assert mode == "RGB"
    assert isinstance(files, list)
    assert files
    found = [_bytes_of(file) for file in files]
    assert all(data.startswith(b"\xff\xd8") for data in found), "not a JPEG file"
    return [image(data, channels_first=True).to(device) for data in found]


def decode_image(file: torch.Tensor, *, mode: Any) -> torch.Tensor:
    """Stand for ``torchcodec.decoders.decode_image`` and torchvision's."""
    assert mode == "RGB"
    return image(_bytes_of(file), channels_first=True)


def nvimgcodec(on_device: Callable[[torch.Tensor], Any], streams: list[Any]) -> dict[str, Any]:
    """Return the members of ``nvidia.nvimgcodec``.

    Args:
        on_device: makes what ``from_dlpack`` takes of an image.
        streams: gets the stream of each call.
    """

    class Decoder:
        def __init__(self, device_id: int) -> None:
            self.device_id = device_id

        def decode(self, files: list[Any], *, params: Any, cuda_stream: int) -> list[Any]:
            assert vars(params) == {"apply_exif_orientation": False, "color_spec": "SRGB"}
            streams.append(cuda_stream)
            assert all(isinstance(file, np.ndarray) and file.dtype == np.uint8 for file in files)
            data = [file.tobytes() for file in files]
            return [on_device(image(one, channels_first=False)) if one[:2] in _HEADS else None for one in data]

    return {"Decoder": Decoder, "DecodeParams": SimpleNamespace, "ColorSpec": SimpleNamespace(SRGB="SRGB")}


# ---------------------------------------------------------------------- arrays


class JaxArray:
    """What ``jax.device_put`` returns: it refers to the array, and reads it when somebody looks."""

    def __init__(self, source: np.ndarray[Any, Any], sharding: Any) -> None:
        self.source, self.sharding = source, sharding

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.source[row]
        return found

    def tolist(self) -> Any:
        """Return the values."""
        return self.source.tolist()


class Sharding(NamedTuple):
    """``jax.sharding.NamedSharding``."""

    mesh: tuple[list[Any], tuple[str, ...]]
    spec: tuple[str, ...]

    @property
    def addressable_devices(self) -> list[Any]:
        """The devices of this process."""
        return self.mesh[0]


def jax(processes: int = 1) -> dict[str, Any]:
    """Return the members of ``jax``."""

    def device_put(array: Any, sharding: Any = None) -> JaxArray:
        assert isinstance(array, np.ndarray)
        return JaxArray(array, sharding)

    return {
        "device_put": device_put,
        "process_count": lambda: processes,
        "make_array_from_process_local_data": lambda sharding, array: JaxArray(array, ("global", sharding)),
        "dlpack": SimpleNamespace(from_dlpack=lambda tensor: ("dlpack", tensor)),
        "sharding": SimpleNamespace(
            Mesh=lambda devices, names: (devices, names),
            NamedSharding=Sharding,
            PartitionSpec=lambda *names: names,
        ),
    }


class _FromGenerator:
    def __init__(self, generator: Callable[[], Iterator[Any]], output_signature: Any) -> None:
        self._generator, self.element_spec = generator, output_signature

    def __iter__(self) -> Iterator[Any]:
        for values in self._generator():
            assert set(values) == set(self.element_spec)
            for name, value in values.items():
                self.element_spec[name].check(value)
            yield values


class _TensorSpec(NamedTuple):
    shape: tuple[int | None, ...]
    dtype: Any

    def check(self, value: Any) -> None:
        """Refuse what does not fit."""
        assert len(value.shape) == len(self.shape)
        assert all(own in {None, there} for own, there in zip(self.shape, value.shape, strict=True))
        assert value.dtype == (object if self.dtype == "string" else self.dtype)


class _RaggedTensor(NamedTuple):
    values: Any
    row_splits: Any


class _RaggedSpec(NamedTuple):
    shape: tuple[int | None, ...]
    dtype: Any
    ragged_rank: int
    row_splits_dtype: Any = np.int64

    def check(self, value: Any) -> None:
        """Refuse what does not fit."""
        assert isinstance(value, _RaggedTensor)
        assert (value.values.dtype, value.row_splits.dtype) == (self.dtype, self.row_splits_dtype)
        assert value.row_splits[-1] == len(value.values)


def tensorflow() -> dict[str, Any]:
    """Return the members of ``tensorflow``."""
    return {
        "string": "string",
        "int64": np.int64,
        "TensorSpec": _TensorSpec,
        "RaggedTensorSpec": _RaggedSpec,
        "RaggedTensor": SimpleNamespace(from_row_splits=_RaggedTensor),
        "data": SimpleNamespace(Dataset=SimpleNamespace(from_generator=_FromGenerator)),
    }


class DaliPipeline:
    """A DALI pipeline of one external source: it reads ``depth`` batches ahead, and copies at once or when it runs.

    At the end of an epoch it asks for the next iterator at once, and reads from it before the loop sees the end.
    """

    def __init__(self, source: Any, num_outputs: int, depth: int, *, no_copy: bool) -> None:
        self._source, self._outputs, self._depth, self._no_copy = source, num_outputs, depth, no_copy
        self._feed = iter(source)
        self._waiting: list[Any] = []
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._read()
            if not self._waiting:
                self._over = False
                self._read()
                return
            fields = self._waiting.pop(0)
            yield [field() if callable(field) else field for field in fields]

    def _read(self) -> None:
        while not self._over and len(self._waiting) < self._depth:
            try:
                batch = next(self._feed)
            except StopIteration:
                self._feed, self._over = iter(self._source), True
                return
            assert len(batch) == self._outputs
            self._waiting.append([self._addresses(field) if self._no_copy else _copied(field) for field in batch])
            del batch

    @staticmethod
    def _addresses(field: Any) -> Callable[[], Any]:
        """Read memory by its address later, as DALI does with ``no_copy=True``: nothing is kept alive for it."""
        single = not isinstance(field, list)
        arrays = [field] if single else field
        places = [(one.ctypes.data, one.nbytes, one.dtype, one.shape) for one in arrays]

        def read() -> Any:
            import ctypes  # noqa: PLC0415 - see above

            found = [
                np.frombuffer(ctypes.string_at(at, size), dtype).reshape(shape) for at, size, dtype, shape in places
            ]
            return found[0] if single else found

        return read


def _copied(field: Any) -> Any:
    return [one.copy() for one in field] if isinstance(field, list) else field.copy()
