"""Tensors that torch.save wrote, with one sample per row; read in place, without unpickling."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Final

from feedd.errors import BadShard
from feedd.formats.format_spec import AmongSamples, FormatSpec
from feedd.formats.strided import FIELD, StridedArray, StridedReader
from feedd.formats.tensor_pickle import PICKLE_BYTES_MAX, NotPlainError, TensorView, load
from feedd.formats.view_file import ViewFile
from feedd.recipe.low_precision import item_bytes
from feedd.recipe.params import DIMS_MAX

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

    from feedd.shard_index import ShardIndex

_PICKLE: Final = "/data.pkl"
_LOCAL_HEAD_BYTES: Final = 30
_AS_IT_IS: Final = 0  # ``zipfile.ZIP_STORED``
_MEMBERS_MAX: Final = 65536
_HINT: Final = "save a dict of plain tensors with equally many rows by torch.save, or by safetensors.torch.save_file"
_BROKEN: Final = (
    *(NotImplementedError, RuntimeError, EOFError, OSError, zlib.error),
    *(ValueError, KeyError, IndexError, OverflowError, MemoryError),
)


class TorchFormat:
    """``protocols.ShardFormat`` of torch.save's files since 1.6: tensors in a dict, a list or alone; stateless.

    Every tensor with dimensions is a field, with one sample per row. Other entries of a dict are left out. ``bfloat16``
    and 8-bit floats become ``float32``.
    """

    @property
    def name(self) -> str:
        """Name of the format: ``torch``."""
        return "torch"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of each tensor's rows; a key is the row's number.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: not such a file, content that would need unpickling, or tensors that reach beyond the file or have
                different first dimensions.
        """
        return _Reader(data, url).read()


class _Reader(StridedReader):
    def read(self) -> ShardIndex:
        """Read the archive's directory and its pickle; return the index."""
        import zipfile  # noqa: PLC0415 - takes each worker 20 ms, and few datasets need it

        try:
            with zipfile.ZipFile(ViewFile(self._data)) as archive:
                members = {info.filename: info for info in archive.infolist()[: _MEMBERS_MAX + 1]}
                if len(members) > _MEMBERS_MAX:
                    self.fail(0, f"at most {_MEMBERS_MAX} members", "more")
                root = self._root(members)
                held = load(self._member(members[root + _PICKLE], PICKLE_BYTES_MAX))
                order = members.get(f"{root}/byteorder")
                if order is not None and self._member(order, 16) != b"little":
                    self.fail(0, "little-endian numbers", "big-endian numbers")
        except NotPlainError as error:
            raise BadShard(
                f"expected plain tensors, got {error}", object=self._url, hint=_HINT, stage="decode"
            ) from error
        except (zipfile.BadZipFile, *_BROKEN) as error:
            self.fail(0, "a file of torch.save since 1.6", f"{type(error).__name__} {error}")
        return self._rows(root, members, dict(_tensors(held)), _others(held))

    def _root(self, members: dict[str, zipfile.ZipInfo]) -> str:
        roots = [name.removesuffix(_PICKLE) for name in members if name.endswith(_PICKLE)]
        if len(roots) != 1:
            self.fail(0, "one data.pkl", str(len(roots)))
        return roots[0]

    def _member(self, info: zipfile.ZipInfo, size_max: int) -> bytes:
        if info.file_size > size_max:
            self.fail(info.header_offset, f"{info.filename} of at most {size_max} bytes", str(info.file_size))
        at = self._data_start(info)
        return bytes(self._data[at : at + info.file_size])

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        """Return the start of a member's bytes, which must be complete and uncompressed."""
        at = info.header_offset
        head = bytes(self._data[at : at + _LOCAL_HEAD_BYTES]) if at >= 0 else b""
        if len(head) < _LOCAL_HEAD_BYTES or head[:4] != b"PK\x03\x04":
            self.fail(max(at, 0), f"the header of {info.filename!r}", repr(head[:4]))
        if info.compress_type != _AS_IT_IS or info.flag_bits & 1:
            self.fail(at, f"{info.filename!r} uncompressed", "a compressed or encrypted member")
        start = at + _LOCAL_HEAD_BYTES + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if info.file_size != info.compress_size or start + info.file_size > len(self._data):
            self.fail(at, f"{info.file_size} bytes of {info.filename!r}", f"{len(self._data) - start}")
        return start

    def _rows(
        self, root: str, members: dict[str, zipfile.ZipInfo], tensors: dict[str, TensorView], others: dict[str, str]
    ) -> ShardIndex:
        if not tensors:
            raise BadShard("expected tensors with rows, got none", object=self._url, hint=_HINT, stage="decode")
        first, tensor = next(iter(tensors.items()))
        rows = tensor.shape[0]
        for name, one in tensors.items():
            if one.shape[0] != rows:
                self.fail(0, f"tensors with a row per sample, {rows} as in {first!r}", f"{name!r} of {one.shape}")
        self.check_cells(len(tensors), rows, column_count=0)
        arrays = [
            self._array(name, one, members.get(f"{root}/data/{one.storage.key}")) for name, one in tensors.items()
        ]
        return self.laid(arrays, rows, others)

    def _array(self, name: str, tensor: TensorView, info: zipfile.ZipInfo | None) -> StridedArray:
        if info is None:
            self.fail(0, f"the numbers of {name!r}", "none")
        shape, item = tensor.shape, item_bytes(tensor.storage.dtype)
        if len(shape) > DIMS_MAX + 1:
            self.fail(0, f"at most {DIMS_MAX + 1} dimensions", f"{name!r} of {shape}")
        dense = 1
        for side, stride in zip(reversed(shape[1:]), reversed(tensor.strides[1:]), strict=True):
            if side > 1 and stride != dense:
                self.fail(info.header_offset, "contiguous rows (use .contiguous())", f"{name!r} of {shape}")
            dense *= side
        count = math.prod(shape[1:])
        end = tensor.offset + tensor.strides[0] * (shape[0] - 1) + count if count and shape[0] else 0
        if end > tensor.storage.numel or tensor.storage.numel * item > info.file_size:
            self.fail(info.header_offset, f"the numbers of {name!r} of {shape}", f"{info.file_size} bytes")
        at, step = (self._data_start(info) + tensor.offset * item, tensor.strides[0] * item) if end else (0, 0)
        return StridedArray(name, tensor.storage.dtype, shape[1:], at, step)


def _tensors(held: object) -> Iterator[tuple[str, TensorView]]:
    """Yield the tensors that can be fields, by name."""
    named = {FIELD: held} if isinstance(held, TensorView) else held
    if isinstance(named, (list, tuple)):
        named = {str(number): one for number, one in enumerate(named)}
    if isinstance(named, dict):
        for name, one in named.items():
            if isinstance(one, TensorView) and one.shape:
                yield str(name), one


def _others(held: object) -> dict[str, str]:
    """Return entries that cannot be fields: name -> type."""
    if isinstance(held, (list, tuple)):
        held = {str(number): one for number, one in enumerate(held)}
    named = held.items() if isinstance(held, dict) else ()
    return {
        str(name): "a tensor without dimensions" if isinstance(one, TensorView) else type(one).__name__
        for name, one in named
        if not (isinstance(one, TensorView) and one.shape)
    }


FORMATS: Final = (FormatSpec(TorchFormat(), (".pt", ".pth"), among_samples=AmongSamples.IGNORED),)
