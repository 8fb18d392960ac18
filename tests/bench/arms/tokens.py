"""The training side of every token arm: takes epochs of batches for a time, touches each row, checks what came."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from tests.bench.procs import tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOKENS = 2049


def read_settings() -> dict[str, Any]:
    """Return the settings the harness handed over."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def take(loader: Iterable[Any], to_tokens: Callable[[Any], torch.Tensor], settings: dict[str, Any]) -> None:
    """Take one epoch that is not counted, then whole epochs for ``duration_s``; print the arm's line of JSON.

    The first two tokens of a sample are its number, so a sample that is missing, comes twice or is mixed up is found.

    Args:
        loader: the contender; ``iter`` is called once for each epoch, as a training script does.
        to_tokens: takes the tensor uint16 [batch, tokens] out of its batch.
        settings: ``sample_count``, ``batch_size`` and ``duration_s``.
    """
    _epoch(loader, to_tokens, settings)
    cpu_s, own_cpu_s, begin_s = tree_cpu_s(), time.process_time(), time.perf_counter()
    batches, inside, inside_s = 0, 0, 0.0
    while (now_s := time.perf_counter()) < begin_s + settings["duration_s"] or not batches:
        count, first_s, last_s = _epoch(loader, to_tokens, settings)
        batches, inside, inside_s = batches + count, inside + count - 1, inside_s + last_s - first_s
    now_s = time.perf_counter()
    cpu_s, own_cpu_s = tree_cpu_s() - cpu_s, time.process_time() - own_cpu_s
    row = {
        "batches": batches,
        "batches_per_s": batches / (now_s - begin_s),
        "batches_per_s_inside": inside / inside_s,
        "tokens_per_s": batches * settings["batch_size"] * TOKENS / (now_s - begin_s),
        "cpu_ms_per_batch": 1000 * cpu_s / batches,
        "trainer_ms_per_batch": 1000 * own_cpu_s / batches,
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")


def _epoch(
    loader: Iterable[Any], to_tokens: Callable[[Any], torch.Tensor], settings: dict[str, Any]
) -> tuple[int, float, float]:
    """Take an epoch; return its batches, and when the first and the last came."""
    count = number_sum = 0
    first_s = last_s = 0.0
    for batch in loader:
        last_s = time.perf_counter()
        if not count:
            first_s = last_s
        tokens = to_tokens(batch)
        assert tokens.dtype == torch.uint16, tokens.dtype
        assert tuple(tokens.shape) == (settings["batch_size"], TOKENS), tokens.shape
        low, high = tokens[:, :2].numpy().astype("int64").sum(axis=0).tolist()  # touches each row
        number_sum += low + (high << 16)
        count += 1
    samples = count * settings["batch_size"]
    expected = settings["sample_count"]
    assert (samples, number_sum) == (expected, expected * (expected - 1) // 2), (samples, number_sum)
    return count, first_s, last_s
