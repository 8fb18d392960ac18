"""What the scripted feed server serves: fields whose every value follows from the sample's id."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from feedd_client._wire import feedd_pb2 as pb

SPECS = {
    "rich": [
        pb.TensorSpec(name="img", kind=pb.TensorSpec.DENSE, dtype="uint8", shape=[4, 6, 3]),
        pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64"),
        pb.TensorSpec(name="raw", kind=pb.TensorSpec.RAGGED, dtype="uint8", ndim=1),
        pb.TensorSpec(name="mat", kind=pb.TensorSpec.RAGGED, dtype="float32", ndim=2),
        pb.TensorSpec(name="__key__", kind=pb.TensorSpec.TEXT, dtype="uint8"),
        pb.TensorSpec(name="meta", kind=pb.TensorSpec.JSON, dtype="uint8"),
    ],
    "ids": [pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64")],
    "image": [
        pb.TensorSpec(name="jpg", kind=pb.TensorSpec.DENSE, dtype="uint8", shape=[224, 224, 3]),
        pb.TensorSpec(name="cls", kind=pb.TensorSpec.DENSE, dtype="int64"),
    ],
}


def sample_ids(epoch: int, step: int, rows: int, batch_size: int, topology: pb.Topology) -> np.ndarray[Any, Any]:
    """Ids of the samples of one batch; unique per epoch, node and position."""
    first = (step * max(topology.local_world_size, 1) + topology.local_rank) * batch_size
    return first + np.arange(rows, dtype=np.int64) + topology.node_rank * 1_000_000 + epoch * 100_000_000


def image_of(sample_id: int) -> np.ndarray[Any, Any]:
    """The ``img`` field of one sample."""
    return ((sample_id * 7 + np.arange(72)) % 251).astype(np.uint8).reshape(4, 6, 3)


class Layout:
    """Lays fields into one payload, each part 64-byte aligned."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, bytes]] = []
        self.size_bytes = 0

    def put(self, data: np.ndarray[Any, Any] | bytes) -> int:
        """Append; return where."""
        raw = data if isinstance(data, bytes) else data.tobytes()
        at = self.size_bytes
        self._parts.append((at, raw))
        self.size_bytes = -(-(at + len(raw)) // 64) * 64
        return at

    def region(self, values: list[np.ndarray[Any, Any]] | list[bytes], shapes: list[Any] | None = None) -> Any:
        """Append a ragged or text field."""
        raws = [one if isinstance(one, bytes) else one.tobytes() for one in values]
        item = 1 if isinstance(values[0], bytes) else values[0].itemsize
        ends = np.cumsum([0, *(len(raw) // item for raw in raws)]).astype(np.int64)
        values_at = self.put(b"".join(raws))
        region = pb.FieldRegion(values_at=values_at, values_bytes=sum(map(len, raws)), offsets_at=self.put(ends))
        if shapes is not None:
            region.shapes_at = self.put(np.array(shapes, np.int64))
        return region

    def into(self, target: memoryview | bytearray) -> None:
        """Write everything."""
        for at, raw in self._parts:
            target[at : at + len(raw)] = raw


def lay_out(specs: str, ids: np.ndarray[Any, Any]) -> tuple[Layout, list[Any]]:
    """Lay out one batch."""
    layout, regions = Layout(), []
    numbers = [int(one) for one in ids]
    for spec in SPECS[specs]:
        if spec.name == "img":
            images = np.stack([image_of(one) for one in numbers])
            regions.append(pb.FieldRegion(values_at=layout.put(images), values_bytes=images.nbytes))
        elif spec.name == "cls":
            regions.append(pb.FieldRegion(values_at=layout.put(ids), values_bytes=ids.nbytes))
        elif spec.name == "raw":
            regions.append(layout.region([bytes([one % 256]) * (one % 5 + 1) for one in numbers]))
        elif spec.name == "mat":
            mats = [np.full((one % 3 + 1, 2), one % 1000, np.float32) for one in numbers]
            regions.append(layout.region(mats, [mat.shape for mat in mats]))
        elif spec.name == "meta":
            regions.append(layout.region([json.dumps({"id": one}).encode() for one in numbers]))
        else:
            regions.append(layout.region([f"sample-{one:09d}".encode() for one in numbers]))
    return layout, regions


def blank(specs: str, rows: int) -> tuple[Layout, list[Any]]:
    """A batch whose bytes nobody writes, for measuring the hand-off alone."""
    layout, regions = Layout(), []
    for spec in SPECS[specs]:
        size = rows * int(np.prod([*spec.shape, np.dtype(spec.dtype).itemsize]))
        regions.append(pb.FieldRegion(values_at=layout.size_bytes, values_bytes=size))
        layout.size_bytes = -(-(layout.size_bytes + size) // 64) * 64
    return layout, regions
