"""Damaged objects in which a library loops for ever: a worker's deadline makes a typed error of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import PATIENT_S

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_heap_of_hdf5_that_leads_to_itself() -> None:
    """Found by ``tests.fuzz hdf5 --tries 10000 --seed 11``. libhdf5 reads a value of variable length without end."""
    done = subprocess.run(
        [sys.executable, "-m", "feedd", "peek", str(FIXTURES / "heap-loop.h5")],
        capture_output=True,
        text=True,
        env={**os.environ, "FEEDD_DECODE__TASK_DEADLINE": "2s"},
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "expected to convert the object to a shard, got an object that killed two workers" in done.stderr
