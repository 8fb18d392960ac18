"""Batches for other libraries: NumPy, JAX, DLPack, CuPy, TensorFlow, DALI, and decoders of encoded images.

Each adapter imports its library when it is first used. ``import feedd_client`` imports no adapter.
"""

from __future__ import annotations

from feedd_client.adapters.arrays import RaggedArrays, numpy_iterator
from feedd_client.adapters.dali import DaliSource
from feedd_client.adapters.dlpack import cupy_iterator, dlpack_iterator
from feedd_client.adapters.image_decoders import NvImageCodecDecoder, TorchcodecDecoder, TorchvisionDecoder
from feedd_client.adapters.jax_arrays import jax_iterator
from feedd_client.adapters.tensorflow_data import tensorflow_dataset

__all__ = [
    "DaliSource",
    "NvImageCodecDecoder",
    "RaggedArrays",
    "TorchcodecDecoder",
    "TorchvisionDecoder",
    "cupy_iterator",
    "dlpack_iterator",
    "jax_iterator",
    "numpy_iterator",
    "tensorflow_dataset",
]
