"""Bench: what ``feedd plan --simulate`` predicts, and what a real store, daemon and trainer do, side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feedd.cache import entry_layout
from feedd.dataset.index_file import INDEX_NAME
from feedd.dataset.listing import Listing
from feedd.fetch.fetch_options import SourceOptions
from feedd.simulation.scenario import JobModel, NodeModel, Scenario, StoreModel
from feedd.simulation.simulated_job import simulate
from feedd.values import ObjectRef
from tests.bench.harness import Arm, Outcome, Row, interleave
from tests.bench.plan import run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.simulate_data import BUCKET, SAMPLES, SHARDS, prepare, sizes

if TYPE_CHECKING:
    from tests.bench.plan import Plan

FIGURES: Final = ("first_batch_s", "samples_s", "hit_rate", "requests")
TOLERANCE: Final = 0.1
_TIMEOUT_S: Final = 120.0
_WORKERS: Final = 2
_BATCH_SIZE: Final = 32
_PREFETCH: Final = 4  # batches in advance; more would span most of these small data sets
_ANY_RATE: Final = 1e12
COLUMNS: Final = (
    Column("first batch s", "first_batch_s", digits=2, spread=True),
    Column("samples/s", "samples_s", digits=0, spread=True),
    Column("found %", "hit_rate", scale=100, digits=1, spread=True),
    Column("requests", "requests", digits=0, spread=True),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration.

    Attributes:
        data: one of ``SHARDS``.
        cache_share: size of the cache, as a share of the data.
        bytes_s: rate of the store; 0: as fast as it can.
    """

    name: str
    data: str
    latency_s: float
    bytes_s: float
    cache_share: float
    epochs: int
    step_s: float
    ranks: int = 1

    def cache_bytes(self, root: Path) -> int:
        """Return the size of the cache."""
        return int(self.cache_share * sum(_disk_bytes(ref) for ref in _refs(root, self.data)))

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return SAMPLES // (_BATCH_SIZE * self.ranks)


CALIBRATION: Final = Setting("calibration", "middle", 0.0, 0.0, 4.0, 2, 0.0)
SETTINGS: Final = (
    Setting("large shards, near, cache of all", "large", 0.02, 25e6, 4.0, 3, 0.06),
    Setting("small shards, far, cache of all", "small", 0.1, 40e6, 4.0, 2, 0.08),
    Setting("small shards, cache of half, the store is the limit", "small", 0.02, 16e6, 0.5, 3, 0.02),
    Setting("cache of a third, far, the trainer is the limit", "middle", 0.05, 40e6, 0.34, 3, 0.1),
    Setting("two ranks, the store is the limit", "middle", 0.02, 16e6, 4.0, 1, 0.02, ranks=2),
    Setting("four ranks, cache of half, far", "small", 0.1, 30e6, 0.5, 3, 0.3, ranks=4),
)


def run(plan: Plan) -> Result:
    """Measure, calibrate the model with a job that has no part in the comparison, and simulate."""
    root = prepare()
    arms = [_arm(root, one) for one in (CALIBRATION, *SETTINGS)]
    chosen = [arms[0], *(one for one in plan.chosen(arms[1:]))]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"simulate: round {round_index}, {arm.name}")
        return _with_hit_rate(root, arm, run_with_empty_cache(arm, _TIMEOUT_S))

    measured = interleave(chosen, plan.round_count, once, plan.say, first_round=1)
    node = calibrated(root, measured[0])
    result = Result("simulate", f"{SAMPLES} pictures: measured, and simulated", COLUMNS, [])
    for outcome in measured[1:]:
        setting = next(one for one in SETTINGS if one.name == outcome.name)
        predicted = Outcome(f"{outcome.name}: simulated", rounds=[predict(root, setting, node)])
        result.outcomes += [outcome, predicted]
        if not outcome.failure:
            result.verdicts += [_verdict(setting, figure, predicted, outcome) for figure in FIGURES]
    ms = 1000 * node.decode_s
    result.notes = [
        f"Calibrated by a job without latency, pause or limit: open {1000 * node.open_s:.0f} ms, sample {ms:.2f} ms.",
        f"The rate of the link, the latency and the step are those given; {_WORKERS} decode workers.",
        "found: share of the bytes of all epochs that did not come from the store.",
        "A ratio below 1 - 10 % or above 1 + 10 % misses its target; the target line shows the distance from 1.",
    ]
    return result


def calibrated(root: Path, outcome: Outcome) -> NodeModel:
    """Return the model of this machine: what a sample and an open cost, from a job that waits for nothing else."""
    samples_s, first_batch_s = outcome.middle("samples_s"), outcome.middle("first_batch_s")
    assert samples_s is not None, outcome.failure
    assert first_batch_s is not None
    node = NodeModel(_ANY_RATE, workers=_WORKERS, decode_s=_WORKERS / samples_s, open_s=0.0)
    without = predict(root, CALIBRATION, node)["first_batch_s"]
    return replace(node, open_s=max(first_batch_s - without, 0.0))


def predict(root: Path, setting: Setting, node: NodeModel) -> Row:
    """Simulate a configuration."""
    refs = _refs(root, setting.data)
    listing = Listing.of(refs, 0.0)
    listing.add_counts(dict.fromkeys(range(len(refs)), SAMPLES // len(refs)), {}, ())
    job = JobModel(
        1,
        setting.ranks,
        setting.epochs,
        setting.step_s,
        _BATCH_SIZE,
        prefetch=_PREFETCH,
    )
    index_bytes = (root / BUCKET / setting.data / INDEX_NAME).stat().st_size
    scenario = Scenario(
        listing.as_listed,
        list_requests=1,
        job=job,
        node=replace(node, link_bytes_s=setting.bytes_s or _ANY_RATE, cache_bytes=setting.cache_bytes(root)),
        store=StoreModel(setting.latency_s, _ANY_RATE, requests_s=0.0),
        fetch=SourceOptions(hedge_share=0.0),
        sidecars=(ObjectRef(f"s3://{BUCKET}", f"{setting.data}/{INDEX_NAME}", index_bytes, "e"),),
    )
    found = simulate(scenario)
    last, run_s = found.nodes[0].counts[-1], found.epoch_ends_s[-1] - found.first_batch_s
    return {
        "first_batch_s": found.first_batch_s,
        "samples_s": SAMPLES * setting.epochs / run_s,
        "requests": last.gets + last.heads + last.lists,
        "hit_rate": 1 - last.fetched_bytes / (setting.epochs * int(listing.sizes.sum())),
        "epochs_s": list(found.epoch_ends_s),
    }


def _arm(root: Path, setting: Setting) -> Arm:
    settings: dict[str, Any] = {
        "root": str(root),
        "latency_s": setting.latency_s,
        "bytes_s": setting.bytes_s,
        "url": f"s3://{BUCKET}/{setting.data}/",
        "batch_size": _BATCH_SIZE,
        "prefetch": _PREFETCH,
        "fields": {"jpg": "image:224x224"},
        "ranks": setting.ranks,
        "epochs": setting.epochs,
        "steps": setting.steps,
        "step_s": setting.step_s,
        "cache_size": str(setting.cache_bytes(root)),
        "workers": _WORKERS,
    }
    return Arm(setting.name, "tests.bench.arms.simulate_job", Path(sys.executable), {}, settings)


def _with_hit_rate(root: Path, arm: Arm, row: Row) -> Row:
    data = arm.settings["url"].rstrip("/").rpartition("/")[2]
    read_bytes = arm.settings["epochs"] * sum(sizes(root, data))
    return row | {"hit_rate": 1 - row["fetched_bytes"] / read_bytes}


def _verdict(setting: Setting, figure: str, predicted: Outcome, measured: Outcome) -> Verdict:
    """Compare a figure. Of hit rates, which may be 0, the misses are compared."""
    there, here = predicted.middle(figure) or 0.0, measured.middle(figure) or 0.0
    if figure == "hit_rate":
        there, here = 1 - there, 1 - here
    ratio = there / here if here else 0.0
    return Verdict(f"{setting.name}, {figure}: {ratio:.3f}; distance", abs(ratio - 1), TOLERANCE, at_least=False)


def _refs(root: Path, data: str) -> list[ObjectRef]:
    keys = [f"{data}/{shard:06d}.tar" for shard in range(SHARDS[data])]
    return [ObjectRef(f"s3://{BUCKET}", key, size, "e") for key, size in zip(keys, sizes(root, data), strict=True)]


def _disk_bytes(ref: ObjectRef) -> int:
    return entry_layout.disk_bytes(ref)
