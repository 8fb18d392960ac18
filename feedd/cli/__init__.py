"""The ``feedd`` command."""

import os

# numpy would start as many threads as there are cores, each spinning for a while and with memory of its own: nothing
# here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from feedd.cli.app import main

__all__ = ["main"]
