"""Arm: several epochs one after another, with the loader an arm of the epoch bench makes; times every batch's arrival.

A perfect loader's batches arrive one step apart, also across the end of an epoch.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.bench.arms.consume import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.bench.arms.consume import Pair


def take_epochs(loader: Iterable[Any], to_pair: Callable[[Any], Pair], settings: dict[str, Any], **_: Any) -> None:
    """Run the epochs and print the arm's line of JSON; stands in for ``consume``.

    Args:
        loader: the contender; ``iter`` is called once for each epoch, as a training script does.
        to_pair: takes images and labels out of its batch.
        settings: ``epoch_count``, ``step_s`` (what the trainer does with a batch, beside touching it),
            ``sample_count``, ``persistent`` (keep torch's workers from epoch to epoch).
    """
    if settings["persistent"]:
        _keep_workers(loader)
    epochs = [_take_epoch(loader, to_pair, settings) for _ in range(settings["epoch_count"])]
    steps = [after - before for epoch in epochs for before, after in itertools.pairwise(epoch)]
    gaps = [after[0] - before[-1] for before, after in itertools.pairwise(epochs)]
    step_s, gap_s = statistics.median(steps), statistics.median(gaps)
    row = {
        "samples": settings["sample_count"] * settings["epoch_count"],
        "step_s": step_s,
        "mean_step_s": statistics.mean(steps),
        "gap_s": gap_s,
        "worst_gap_s": max(gaps),
        "gap_steps": gap_s / step_s,
        "worst_gap_steps": max(gaps) / step_s,
        "gap_mean_steps": gap_s / statistics.mean(steps),
        "steps": len(steps) + len(epochs),
        "gaps_s": gaps,
    }
    sys.stdout.write("\n" + json.dumps(row) + "\n")


def _take_epoch(loader: Iterable[Any], to_pair: Callable[[Any], Pair], settings: dict[str, Any]) -> list[float]:
    """Return when each batch of an epoch arrived, once all samples were seen."""
    arrivals: list[float] = []
    samples = label_sum = 0
    for batch in loader:
        arrivals.append(time.perf_counter())
        images, labels = to_pair(batch)
        int(images[:, 0, 0, 0].sum())  # touches each row
        samples, label_sum = samples + len(images), label_sum + int(labels.sum())
        time.sleep(settings["step_s"])
    count = settings["sample_count"]
    expected = (count, count * (count - 1) // 2)
    assert (samples, label_sum) == expected, f"expected {expected} samples and label sum, got {samples, label_sum}"
    return arrivals


def _keep_workers(loader: Any) -> None:
    """Set what its maker leaves out and torch guards against: nothing was started yet, so it is not too late."""
    inner = loader.pipeline[0] if hasattr(loader, "pipeline") else loader  # webdataset wraps torch's DataLoader
    assert "persistent_workers" in vars(inner), f"expected a DataLoader, got {type(inner)}"
    vars(inner)["persistent_workers"] = True


def main() -> None:
    """Have the epoch bench's arm make its loader, and take it over where that arm would consume it."""
    settings = read_settings()
    arm: Any = importlib.import_module(settings["loader"])
    arm.consume = take_epochs
    arm.main()


if __name__ == "__main__":
    main()
