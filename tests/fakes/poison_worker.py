"""A decode worker with a weakness: some samples kill it, stop it or keep it busy. Started in place of the real one.

Only the ``bytes`` codec is replaced, and what looks into a shard, a first sample or an image; a form is added.
Everything else is the production worker.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from feedd.codecs import codec_registry as codecs
from feedd.codecs.array import pin_npy as _pin_npy
from feedd.codecs.codec_registry import make
from feedd.codecs.image_header import is_jpeg
from feedd.codecs.text import BytesCodec
from feedd.formats import format_registry as registry
from feedd.recipe.text_params import BytesParams
from feedd.tables import registry as forms
from feedd.tables.ranges import WholeObject
from feedd.workers import executor as execute
from feedd.workers import worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.formats.format_spec import FormatSpec
    from feedd.formats.npy_header import NpyHeader
    from feedd.protocols import PartialObject, SampleCodec, ShardFormat, ShardWriter
    from feedd.recipe.params import ImageParams
    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe

COMMAND = (sys.executable, "-m", "tests.fakes.poison_worker")


_leaked: list[bytes] = []


def react(data: bytes) -> None:
    """Do what a sample says."""
    if data.startswith(b"segfault"):
        os.kill(os.getpid(), signal.SIGSEGV)
    elif data.startswith(b"kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif data.startswith(b"stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif data.startswith(b"slow"):
        time.sleep(0.2)
    elif data.startswith(b"leak"):
        _leaked.append(os.urandom(1 << 20))
    elif data.startswith(b"once:"):  # kills the first worker that sees it
        path = data[5:].decode()
        if not os.path.exists(path):  # noqa: PTH110 - a plain question
            os.close(os.open(path, os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)


class PoisonCodec(BytesCodec):
    """Reacts to what a sample says; anything else is plain bytes."""

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Length in bytes, if it lives to tell."""
        react(bytes(data))
        return super().measure(data)

    def produce(self, data: memoryview) -> NDArray[np.uint8]:
        """Return the bytes, if it lives to."""
        react(bytes(data))
        return np.frombuffer(bytes(data), np.uint8)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Copy, if it lives to."""
        react(bytes(data))
        super().decode(data, out, seed)


class PoisonConverter(WholeObject):
    """Reacts to what an object says, half-way through writing it out."""

    name = "poison"

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write what is said, if it lives to."""
        del url, params
        half = held.size_bytes // 2
        out.write(held.data[:half])
        react(bytes(held.data))
        out.write(held.data[half:])
        return "tar"


POISON = PoisonConverter()


class PoisonFormat:
    """A format whose reader dies of a shard that begins with what a sample would."""

    def __init__(self, real: ShardFormat) -> None:
        self._real = real
        self.name = real.name

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Index, if it lives to."""
        react(bytes(data[:64]))
        return self._real.index(data, url)


def _find(name: str) -> FormatSpec | None:
    spec = registry.find(name)
    return None if spec is None else replace(spec, reader=PoisonFormat(spec.reader))


def pin_poison(data: memoryview, header: Callable[[memoryview], NpyHeader]) -> str:
    """Pin, if it lives to."""
    react(bytes(data))
    return _pin_npy(data, header)


def make_poison(recipe: FieldRecipe) -> SampleCodec:
    """Return the weak codec for ``bytes``, the real one for everything else."""
    return PoisonCodec(BytesParams()) if recipe.codec == "bytes" else make(recipe)


_real_image = codecs._image


def weak_image(params: ImageParams) -> SampleCodec:
    """Return the real codec, which now reacts to what it is given before anything else."""
    from feedd.codecs import image  # noqa: PLC0415 - loads OpenCV

    image.is_jpeg = _weak_is_jpeg  # type: ignore[attr-defined]  # a seam of the worker, too
    return _real_image(params)


def _weak_is_jpeg(data: memoryview) -> bool:
    react(bytes(data[:64]))
    return is_jpeg(data)


if __name__ == "__main__":
    codecs._image = weak_image
    forms._CONVERTERS["poison"] = forms.ConversionSpec("poison", "tests.fakes.poison_worker", "POISON")
    execute._codec_for = make_poison  # type: ignore[assignment]  # the seams of the worker
    execute.pin_npy = pin_poison  # type: ignore[assignment, attr-defined]  # another
    execute.formats = SimpleNamespace(find=_find, get=lambda name: PoisonFormat(registry.get(name)))  # type: ignore[attr-defined, assignment]  # the third seam
    sys.exit(worker.main(sys.argv[1:]))
