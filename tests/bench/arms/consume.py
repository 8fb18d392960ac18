"""The training side of every epoch arm: takes batches, touches each, checks that no sample is missing or repeated."""

from __future__ import annotations

import json
import mmap
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.arms.accelerator import train
from tests.bench.procs import stolen_s, tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

Pair = tuple["torch.Tensor", "torch.Tensor"]  # images uint8 [batch, 224, 224, 3], labels

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, for which the module has no name

READY, GO = "ready\n", "go\n"  # how one of several trainers says so, and what it waits for


def read_settings() -> dict[str, Any]:
    """Return the settings the harness handed over."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    if settings.get("rank_count", 1) > 1:
        from torch import distributed  # noqa: PLC0415 - only ranks have a group, as in training

        distributed.init_process_group("gloo")
    return settings


def consume(
    loader: Iterable[Any],
    to_pair: Callable[[Any], Pair],
    settings: dict[str, Any],
    clocks: Mapping[str, Callable[[], float]] | None = None,
    **facts: Any,
) -> None:
    """Run one epoch, or ``stop_after`` batches of it, and print the arm's line of JSON.

    Args:
        loader: the contender; ``iter`` is called once, inside the measured time.
        to_pair: takes images and labels out of its batch.
        settings: the arm's; ``sample_count`` and ``stop_after`` (0: the whole epoch) are read. With ``step_s`` each
            batch takes an accelerator's time: see ``accelerator.train``.
        clocks: CPU clocks in seconds, by name; the line gets ``<name>_us``, microseconds of each for a sample.
        facts: said in the line as they are: look-ahead as configured, decoder, ...
    """
    if "rank_count" in settings:
        sys.stdout.write(READY)
        sys.stdout.flush()
        assert sys.stdin.readline() == GO, "expected a word to begin, got none"
    touch(settings.get("touched_bytes", 0))
    if "step_s" in settings:
        train(loader, to_pair, settings)
        return
    clocks = clocks or {}
    spent_s = {name: clock() for name, clock in clocks.items()}
    cpu_s, taken_s, begin_s = tree_cpu_s(), stolen_s(), time.perf_counter()
    batches = iter(loader)
    ready_s = time.perf_counter()
    first_s = last_s = 0.0
    samples = first_samples = label_sum = batch_count = 0
    for images, labels in _limited(map(to_pair, batches), settings["stop_after"]):
        last_s = time.perf_counter()
        if not batch_count:
            first_s, first_samples = last_s, len(images)
        assert images.shape[1:] == (224, 224, 3), f"expected pictures of 224x224x3, got {tuple(images.shape)}"
        int(images[:, 0, 0, 0].sum())  # touches each row
        label_sum += int(labels.sum())
        samples += len(images)
        batch_count += 1
    end_s = time.perf_counter()
    cpu_s, taken_s = tree_cpu_s() - cpu_s, stolen_s() - taken_s
    facts |= {f"{name}_us": 1e6 * (clock() - spent_s[name]) / max(1, samples) for name, clock in clocks.items()}
    row = {"first_batch_s": first_s - begin_s, "samples": samples, "batches": batch_count, "cpu_s": cpu_s, **facts}
    if "rank_count" in settings:  # whoever started the ranks holds their sums together
        row |= {"label_sum": label_sum, "epoch_s": end_s - begin_s}
    elif settings["stop_after"] != 1:
        count = settings["sample_count"]
        expected = (count, count * (count - 1) // 2)
        seen = (samples, label_sum)
        assert settings["stop_after"] or seen == expected, f"expected {expected} samples and label sum, got {seen}"
        row |= {
            "epoch_s": end_s - begin_s,
            "samples_per_s": samples / (end_s - begin_s),
            "samples_per_s_from_request": samples / (end_s - ready_s),
            "samples_per_s_after_first": (samples - first_samples) / (last_s - first_s),
            "cpu_ms_per_sample": 1000 * cpu_s / samples,
            "stolen_ms_per_sample": 1000 * taken_s / samples,
        }
    sys.stdout.write("\n" + json.dumps(row) + "\n")
    if "rank_count" in settings:
        sys.stdout.flush()
        sys.stdin.read()  # ending torch costs CPU, which is nobody's loader: only when all have been measured


def touch(size_bytes: int) -> None:
    """Have the machine own that much free memory: a virtual one gives free pages back to its host within seconds.

    Pages that the host has to find again take six times as long to fill (measured: 2.5 s per GB instead of 0.4),
    which is nobody's data loader, and less of a contender's that keeps nothing on tmpfs. It is for those that write
    gigabytes: while the host takes back what they do not use it takes time of the cores, too (0.5 s within the next
    ten for 3 GiB, measured; ``stolen_ms_per_sample`` shows it).
    """
    if size_bytes:
        with mmap.mmap(-1, size_bytes) as memory:
            memory.madvise(_POPULATE_WRITE)


def _limited(pairs: Iterator[Pair], stop_after: int) -> Iterator[Pair]:
    for index, pair in enumerate(pairs):
        yield pair
        if index + 1 == stop_after:
            return
