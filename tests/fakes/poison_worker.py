"""A decode worker with a weakness: some samples kill it, stop it or keep it busy. Started in place of the real one.

Only the ``bytes`` codec is replaced, and a form added; everything else is the production worker.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from feedd.decode import execute, worker
from feedd.decode.codecs.registry import make
from feedd.decode.codecs.text import BytesCodec
from feedd.decode.forms import registry
from feedd.decode.forms.streams import whole
from feedd.decode.params import BytesParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feedd.protocols import Held, Out, SampleCodec
    from feedd.values import ByteRange, FieldRecipe

COMMAND = (sys.executable, "-m", "tests.fakes.poison_worker")


class PoisonForm:
    """Reacts to what an object says, half-way through writing it out."""

    name = "poison"

    def wanted(self, held: Held, params: str) -> tuple[ByteRange, ...]:
        """All of it."""
        return whole(held, params)

    def make(self, held: Held, url: str, params: str, out: Out) -> str:
        """Write what is said, if it lives to."""
        del url, params
        half = held.size_bytes // 2
        out.write(held.data[:half])
        PoisonCodec._react(bytes(held.data))
        out.write(held.data[half:])
        return "tar"


POISON = PoisonForm()


class PoisonCodec(BytesCodec):
    """Reacts to what a sample says; anything else is plain bytes."""

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Length in bytes, if it lives to tell."""
        self._react(bytes(data))
        return super().measure(data)

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Copy, if it lives to."""
        self._react(bytes(data))
        super().decode(data, out, seed)

    @staticmethod
    def _react(data: bytes) -> None:
        if data.startswith(b"segfault"):
            os.kill(os.getpid(), signal.SIGSEGV)
        elif data.startswith(b"stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif data.startswith(b"slow"):
            time.sleep(0.2)
        elif data.startswith(b"once:"):  # kills the first worker that sees it
            path = data[5:].decode()
            if not os.path.exists(path):  # noqa: PTH110 - a plain question
                os.close(os.open(path, os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)


def make_poison(recipe: FieldRecipe) -> SampleCodec:
    """Return the weak codec for ``bytes``, the real one for everything else."""
    return PoisonCodec(BytesParams()) if recipe.codec == "bytes" else make(recipe)


if __name__ == "__main__":
    registry._FORMS["poison"] = ("tests.fakes.poison_worker", "POISON")
    execute._codec_for = make_poison  # type: ignore[assignment]  # the one seam of the worker
    sys.exit(worker.main(sys.argv[1:]))
