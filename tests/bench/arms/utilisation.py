"""The training side of the arms of ``utilisation``: each batch takes the accelerator a known time."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def take(batches: Iterable[torch.Tensor], settings: dict[str, Any]) -> None:
    """Take ``warm_batches``, then ``batch_count`` that are measured; print the arm's line of JSON."""
    step_s = settings["step_s"]
    began_s = cpu_s = 0.0
    warm_count, count = settings["warm_batches"], 0
    for batch in batches:
        assert len(batch) == settings["batch_size"], f"expected {settings['batch_size']} pictures, got {len(batch)}"
        int(batch[:, 0, 0, 0].sum())  # touches each row
        time.sleep(step_s)
        count += 1
        if count == warm_count:
            began_s, cpu_s = time.perf_counter(), tree_cpu_s()
        if count == warm_count + settings["batch_count"]:
            break
    took_s, cpu_s = time.perf_counter() - began_s, tree_cpu_s() - cpu_s
    measured = settings["batch_count"]
    assert count == warm_count + measured, f"expected more batches, got {count}"
    samples = measured * settings["batch_size"]
    row = {
        "utilisation": step_s * measured / took_s,
        "samples_per_s": samples / took_s,
        "cpu_ms_per_sample": 1000 * cpu_s / samples,
        "batch_s": took_s / measured,
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")
