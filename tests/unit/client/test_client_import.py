"""What ``import feedd_client`` does to the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.budget import PATIENT_S

pytestmark = pytest.mark.slow


def _each(*cases: str) -> str:
    """Return a program that runs each case in a fork of one process: torch takes seconds to import."""
    forks = "".join(
        f"if not os.fork():\n{textwrap.indent(case, '    ')}\n    os._exit(0)\nassert os.wait()[1] == 0, {case!r}\n"
        for case in cases
    )
    return f"import gc, os, sys, torch\n{forks}"


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_the_collector_is_as_it_was() -> None:
    """The collector pauses while modules are imported, and goes on if it did before, also after a failure."""
    whole = "import feedd_client"
    failure = "sys.modules['grpc'] = None\ntry: import feedd_client\nexcept ImportError: pass"
    _run(
        _each(
            *(
                f"gc.{first}()\nbefore = gc.isenabled()\n{then}\nassert gc.isenabled() == before"
                for first in ("enable", "disable")
                for then in (whole, failure)
            )
        )
    )


def test_adapters_import_nothing_by_themselves() -> None:
    """The client imports no adapter, and the adapters import no library of others before they are used."""
    others = "jax", "tensorflow", "cupy", "nvidia", "torchvision", "torchcodec", "ray", "composer"
    _run(
        "import sys, feedd_client\nassert 'feedd_client.adapters' not in sys.modules\nimport feedd_client.adapters\n"
        f"assert not set({others}) & set(sys.modules)"
    )
