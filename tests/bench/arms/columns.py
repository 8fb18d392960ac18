"""The training side of the arms of columns: takes batches of an epoch, touches each, checks that no row is missing."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.arms.consume import touch
from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

ROW: str = "row"
"""The column that numbers all rows."""


def read_settings() -> dict[str, Any]:
    """Return the settings the harness handed over."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def take(batches: Iterable[Mapping[str, torch.Tensor]], settings: Mapping[str, Any]) -> None:
    """Run one epoch and print the arm's line of JSON.

    Args:
        batches: dictionaries of tensors; ``iter`` is called once, inside the measured time.
        settings: ``columns`` that each batch must have, ``sample_count``, and ``touched_bytes`` (see ``touch``).
    """
    touch(settings["touched_bytes"])
    cpu_s, begin_s = tree_cpu_s(), time.perf_counter()
    samples = total = count = 0
    first_s = 0.0
    for batch in batches:
        if not count:
            first_s = time.perf_counter()
        for name in settings["columns"]:
            float(batch[name].reshape(-1)[-1])
        samples += len(batch[ROW])
        total += int(batch[ROW].sum())
        count += 1
    epoch_s = time.perf_counter() - begin_s
    cpu_s = tree_cpu_s() - cpu_s
    rows = settings["sample_count"]
    expected = (rows, rows * (rows - 1) // 2)
    assert (samples, total) == expected, f"expected {expected} rows and their sum, got {samples, total}"
    figures = {
        "samples": samples,
        "batches": count,
        "epoch_s": epoch_s,
        "first_batch_s": first_s - begin_s,
        "samples_per_s": samples / epoch_s,
        "cpu_s": cpu_s,
        "cpu_us_per_sample": 1e6 * cpu_s / samples,
    }
    sys.stdout.write("\n" + json.dumps(figures) + "\n")
