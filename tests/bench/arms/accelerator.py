"""The training side of the arms of ``mlperf``: an accelerator that sleeps, and its utilisation as DLIO counts it."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch


def utilisation(computed_s: Sequence[float], first_step_end_s: float, ended_s: float) -> float:
    """Return the share of time that an accelerator computed, from the end of its first step to the loop's end.

    Args:
        computed_s: seconds that each step computed.
        first_step_end_s: when the first step ended.
        ended_s: when the loop ended.
    """
    return sum(computed_s[1:]) / (ended_s - first_step_end_s)


def train(
    loader: Iterable[Any], to_pair: Callable[[Any], tuple[torch.Tensor, torch.Tensor]], settings: dict[str, Any]
) -> None:
    """Run one epoch, and print the arm's line of JSON.

    A step sleeps for ``step_s``. A batch with fewer samples sleeps for its part of that, because contenders cut the end
    of an epoch in different places.

    Args:
        loader: the contender; ``iter`` is called once, inside the measured time.
        to_pair: takes records and labels out of its batch. Labels are the samples' numbers.
        settings: the arm's; ``step_s``, ``batch_size``, ``record_bytes`` and ``sample_count`` are read.
    """
    step_s, batch_size, record_bytes = settings["step_s"], settings["batch_size"], settings["record_bytes"]
    samples = label_sum = 0
    computed_s: list[float] = []
    cpu_s, began_s = tree_cpu_s(), time.perf_counter()
    first_s = first_step_end_s = began_s
    for records, labels in map(to_pair, loader):
        if not computed_s:
            first_s = time.perf_counter()
        assert records.shape[1:] == (record_bytes,), f"expected {record_bytes} bytes a row, got {tuple(records.shape)}"
        int(records[:, 0].sum())  # touches each row
        label_sum += int(labels.sum())
        samples += len(records)
        compute_s = time.perf_counter()
        time.sleep(step_s * len(records) / batch_size)
        now_s = time.perf_counter()
        if not computed_s:
            first_step_end_s = now_s
        computed_s.append(now_s - compute_s)
    ended_s = time.perf_counter()
    cpu_s = tree_cpu_s() - cpu_s
    count = settings["sample_count"]
    expected, seen = (count, count * (count - 1) // 2), (samples, label_sum)
    assert seen == expected, f"expected {expected} samples and label sum, got {seen}"
    epoch_s = ended_s - began_s
    row = {
        "samples": samples,
        "batches": len(computed_s),
        "epoch_s": epoch_s,
        "first_batch_s": first_s - began_s,
        "utilisation": utilisation(computed_s, first_step_end_s, ended_s),
        "utilisation_with_first": sum(computed_s) / epoch_s,
        "samples_per_s": samples / epoch_s,
        "bytes_per_s": samples * record_bytes / epoch_s,
        "cpu_s": cpu_s,
        "cpu_s_per_gb": 1e9 * cpu_s / (samples * record_bytes),
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")
