"""A codec: depth maps of uint16 millimetres, decoded into float32 metres."""

import struct

import numpy as np

from feedd.errors import BadSample
from feedd.values import FieldKind, TensorSpec

HEADER = struct.Struct("<II")  # height and width, in front of height x width uint16 values


class DepthMap:
    """Decodes uint16 depths into float32, multiplied by a scale."""

    def __init__(self, scale=0.001):
        self.scale = np.float32(scale)

    def spec(self, name):
        """Return what the field looks like in a batch: depth maps of different sizes."""
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="float32", ndim=2)

    def measure(self, data):
        """Return the shape of one sample, read from its header."""
        if len(data) < HEADER.size:
            raise BadSample(f"expected a header of {HEADER.size} bytes, got {len(data)} bytes")
        return HEADER.unpack_from(data)

    def decode(self, data, out, seed):
        """Write one sample into ``out``."""
        values = np.frombuffer(data, "<u2", offset=HEADER.size)
        if values.size != out.size:
            raise BadSample(f"expected {out.size} values, got {values.size}")
        out[...] = values.reshape(out.shape) * self.scale
