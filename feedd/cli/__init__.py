"""The ``feedd`` command."""

import os

# numpy would start as many OpenBLAS threads as there are cores. Each spins for a while and uses memory, and feedd
# multiplies no matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from feedd.cli.app import main

__all__ = ["main"]
