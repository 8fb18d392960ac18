"""What ``import feedd_client`` does to the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", ["gc.enable()", "gc.disable()"])
@pytest.mark.parametrize(
    "then", ["import feedd_client", "sys.modules['grpc'] = None\ntry: import feedd_client\nexcept ImportError: pass"]
)
def test_the_collector_is_as_it_was(first: str, then: str) -> None:
    """The collector pauses while modules are imported, and goes on if it did before, also after a failure."""
    code = f"import gc, sys, torch\n{first}\nbefore = gc.isenabled()\n{then}\nassert gc.isenabled() == before"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
