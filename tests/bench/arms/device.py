"""The training side of the arms of ``device``: takes batches on the GPU, with a step of known length on each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable  # noqa: TC003 - for the annotation of a variable
from typing import TYPE_CHECKING, Any

import torch

from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterable

ROW_VALUES = 75_264  # uint16: the 150,528 bytes of a picture of 224 x 224 x 3
_CALIBRATION_CYCLES = 50_000_000
_wait: Callable[[int], None] = torch.cuda._sleep


def read_settings() -> dict[str, Any]:
    """Return the settings that the harness handed over."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def _cycles(step_ms: float) -> int:
    """Return how many clock cycles the GPU waits in a step of this length."""
    if not step_ms:
        return 0
    event: Callable[..., Any] = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    _wait(_CALIBRATION_CYCLES)  # the clock rises under load
    begin.record()
    _wait(_CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    return int(_CALIBRATION_CYCLES * step_ms / begin.elapsed_time(end))


def take(loader: Iterable[torch.Tensor], settings: dict[str, Any]) -> None:
    """Take ``warm_batches``, then ``batch_count`` that are measured; print the arm's line of JSON."""
    cycles = _cycles(settings["step_ms"])
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    began_s = cpu_s = 0.0
    count = taken_bytes = 0
    for batch in loader:
        total += batch[:, 0].sum(dtype=torch.int64)
        if cycles:
            _wait(cycles)
        count += 1
        if count == settings["warm_batches"]:
            torch.cuda.synchronize()
            began_s, cpu_s = time.perf_counter(), tree_cpu_s()
        elif count > settings["warm_batches"]:
            taken_bytes += batch.nbytes
        if count == settings["warm_batches"] + settings["batch_count"]:
            break
    torch.cuda.synchronize()
    took_s, cpu_s = time.perf_counter() - began_s, tree_cpu_s() - cpu_s
    batches = settings["batch_count"]
    assert count == settings["warm_batches"] + batches, f"expected more batches, got {count}"
    row = {
        "batches_per_s": batches / took_s,
        "bytes_per_s": taken_bytes / took_s,
        "lost_ms": 1000 * took_s / batches - settings["step_ms"],
        "cpu_ms": 1000 * cpu_s / batches,
        "device": torch.cuda.get_device_name(),
        "checksum": int(total),
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")
