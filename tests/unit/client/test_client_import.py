"""What ``import feedd_client`` does to the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.budget import later

pytestmark = pytest.mark.slow


_IMPORT = "import feedd_client"
_FAILURE = "sys.modules['grpc'] = None\ntry: import feedd_client\nexcept ImportError: pass"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("gc.enable()", _IMPORT),
        ("gc.disable()", _FAILURE),
        later("gc.disable()", _IMPORT),
        later("gc.enable()", _FAILURE),
    ],
)
def test_the_collector_is_as_it_was(first: str, then: str) -> None:
    """The collector pauses while modules are imported, and goes on if it did before, also after a failure."""
    code = f"import gc, sys, torch\n{first}\nbefore = gc.isenabled()\n{then}\nassert gc.isenabled() == before"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_adapters_import_nothing_by_themselves() -> None:
    """The client imports no adapter, and the adapters import no library of others before they are used."""
    others = "jax", "tensorflow", "cupy", "nvidia", "torchvision", "torchcodec", "ray", "composer"
    code = (
        "import sys, feedd_client\nassert 'feedd_client.adapters' not in sys.modules\nimport feedd_client.adapters\n"
        f"assert not set({others}) & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
