"""Bench: MLPerf Storage's accelerator utilisation (AU), with ResNet-50's records and UNet3D's volumes, beside peers.

Sizes and times are those of MLPerf Storage v2.0: ``configs/dlio/workload/{resnet50,unet3d}_{h100,a100}.yaml`` in
https://github.com/mlcommons/storage at commit caa90c9. The same files are in DLIO's repository.

| | samples | batch | computation, H100 | computation, A100 |
|---|---|---|---|---|
| ResNet-50 | 114,660 bytes, 1,251 in a file | 400 | 0.224 s | 0.435 s |
| UNet3D | 146,600,628 bytes, 1 in a file | 7 | 0.323 s | 0.636 s |

AU follows ``compute_metrics_train`` in ``dlio_benchmark/utils/statscounter.py`` of
https://github.com/argonne-lcf/dlio_benchmark at commit e1919d7, with its ``metric_exclude_start_steps`` of 1. It is the
time that the steps after the first computed, over the time from the end of the first step to the end of the loop. A
computation is a sleep. An accelerator needs an AU of 90 %.

This bench differs from MLPerf Storage: it has one epoch of little data, and one accelerator. UNet3D's files all have
the mean size (DLIO's vary by 68,341,808 bytes), are ``.npy`` instead of ``.npz``, and reach the trainer whole. DLIO
hands over 2 MiB of each. ResNet-50's records are in tar or the peer's own format instead of TFRecord. A last batch with
fewer samples counts with its part of a step, and DLIO drops it.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import BUCKET
from tests.bench.harness import Arm, Row, interleave
from tests.bench.mlperf_data import RECORD_BYTES, VOLUME_BYTES, VOLUMES, prepare_records, prepare_volumes
from tests.bench.plan import WORKERS, run_with_empty_cache
from tests.bench.report import Column, Result, Verdict
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.plan import Plan

_TIMEOUT_S = 180.0
_AU_NEEDED = 0.9
_RAW_CONNECTIONS = 4
_DAEMON_IDLE_S = 1.0
_VOLUME_BATCHES_OF_A_WORKER = 2
_READERS = ("boto3", "boto3, into the batch", "obstore", "s3torchconnector")
COLUMNS = (
    Column("AU %", "utilisation", scale=100, digits=1, spread=True),
    Column("AU % with 1st batch", "utilisation_with_first", scale=100, digits=1),
    Column("samples/s", "samples_per_s", digits=1, spread=True),
    Column("MB/s", "bytes_per_s", scale=1e-6, digits=0),
    Column("CPU s/GB", "cpu_s_per_gb", digits=2, spread=True),
    Column("1st batch s", "first_batch_s", digits=2),
    Column("from S3 / data", "sent_share", digits=3),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One of MLPerf Storage's.

    Attributes:
        name: as its configuration is named.
        record_bytes: of a sample.
        batch_size: samples of a step.
        steps_s: computation time of a step, by accelerator.
    """

    name: str
    record_bytes: int
    batch_size: int
    steps_s: dict[str, float]

    def bytes_per_s(self, accelerator: str) -> float:
        """Rate that keeps this accelerator busy."""
        return self.batch_size * self.record_bytes / self.steps_s[accelerator]


RESNET50 = Workload("resnet50", RECORD_BYTES, 400, {"h100": 0.224, "a100": 0.435})
UNET3D = Workload("unet3d", VOLUME_BYTES, 7, {"h100": 0.323, "a100": 0.636})
_SHARDS, _SHARD_RECORDS, _VOLUME_COUNT = 8, 1251, 42
_QUICK_SHARDS, _QUICK_RECORDS, _QUICK_VOLUMES, _QUICK_BATCH, _QUICK_VOLUME_BYTES = 4, 100, 8, 2, 8_000_000


def run(plan: Plan) -> list[Result]:
    """Measure both workloads with both accelerators."""
    return [*_records(plan), *_volumes(plan, *UNET3D.steps_s)]


def run_unet3d(plan: Plan) -> list[Result]:
    """Measure UNet3D with the faster accelerator."""
    return _volumes(plan, "h100")


def _records(plan: Plan) -> list[Result]:
    plan.say("mlperf: making records that are missing")
    data = prepare_records(*((_QUICK_SHARDS, _QUICK_RECORDS) if plan.quick else (_SHARDS, _SHARD_RECORDS)), plan.peers)
    own = replace(plan, _stack=contextlib.ExitStack(), _data=data, _server=None)
    load = replace(RESNET50, batch_size=50) if plan.quick else RESNET50
    settings: dict[str, Any] = {
        "batch_size": load.batch_size,
        "record_bytes": load.record_bytes,
        "decoder": "record",
        "touched_bytes": _touched_bytes(data.shape.sample_count * load.record_bytes),
    }
    ours: dict[str, Any] = {
        "folder": "tar",
        "fields": {"jpg": f"tensor:uint8:{load.record_bytes}", "cls": "int"},
        "record": "jpg",
        "label": "cls",
        "idle_s": _DAEMON_IDLE_S,
    }
    size_bytes = data.shape.sample_count * load.record_bytes

    def once(arm: Arm, round_index: int) -> Row:
        row = own.once(arm, round_index, _TIMEOUT_S)
        return row | {"sent_share": row["sent_bytes"] / size_bytes}

    try:
        paths = [f"/{BUCKET}/tar/{path.name}" for path in sorted((data.root / BUCKET / "tar").iterdir())]
        limit = own.server.raw_bytes_per_s(paths, _RAW_CONNECTIONS)
        results = []
        for accelerator, step_s in load.steps_s.items():
            step = {**settings, "step_s": step_s}
            arms = [own.feedd_arm(module="mlperf_feedd", **step, **ours), *own.peer_arms(**step)]
            result = _measured(plan, load, accelerator, arms, once)
            result.notes += [_limit_note(limit), "Shuffle and look-ahead: as in the bench epoch."]
            results.append(result)
        return results
    finally:
        own.close()


def _volumes(plan: Plan, *accelerators: str) -> list[Result]:
    plan.say("mlperf: making volumes that are missing")
    load, count = UNET3D, _VOLUME_COUNT
    if plan.quick:
        load, count = replace(load, record_bytes=_QUICK_VOLUME_BYTES, batch_size=_QUICK_BATCH), _QUICK_VOLUMES
    root = prepare_volumes(count, load.record_bytes)
    with BenchServer(root) as server:
        limit = server.raw_bytes_per_s([f"/{BUCKET}/{VOLUMES}/{number:08d}.npy" for number in range(count)])

        def once(arm: Arm, round_index: int) -> Row:
            before = server.sent()
            row = run_with_empty_cache(arm, _TIMEOUT_S)
            sent = server.sent().since(before)
            return row | {"sent_share": sent.body_bytes / (count * load.record_bytes), "gets": sent.get_count}

        results = []
        for accelerator in accelerators:
            settings = {
                "step_s": load.steps_s[accelerator],
                "sample_count": count,
                "touched_bytes": _touched_bytes(count * load.record_bytes),
            }
            arms = _volume_arms(plan, load, server, settings)
            result = _measured(plan, load, accelerator, arms, once)
            result.notes += [
                _limit_note(limit),
                f"DataLoader: {WORKERS} workers, prefetch_factor {_VOLUME_BATCHES_OF_A_WORKER}.",
            ]
            results.append(result)
    return results


def _volume_arms(plan: Plan, load: Workload, server: BenchServer, settings: dict[str, Any]) -> list[Arm]:
    shared = {
        **settings,
        "bucket": BUCKET,
        "folder": VOLUMES,
        "record_bytes": load.record_bytes,
        "batch_size": load.batch_size,
        "workers": WORKERS,
        "prefetch_factor": _VOLUME_BATCHES_OF_A_WORKER,
    }
    ours = {
        "fields": {"npy": f"npy:uint8:{load.record_bytes}"},
        "record": "npy",
        "label": "",
        "idle_s": _DAEMON_IDLE_S,
    }
    module = "tests.bench.arms.mlperf_feedd"
    arms = [Arm("feedd", module, Path(sys.executable), server.environment, {**shared, **ours})]
    if plan.peers is not None:
        environment = {**plan.peers.environment, **server.environment}
        arms += [
            Arm(
                f"DataLoader, {reader}",
                "tests.bench.arms.mlperf_loader",
                plan.peers.python,
                environment,
                {**shared, "reader": reader},
            )
            for reader in _READERS
        ]
    return arms


def _touched_bytes(data_bytes: int) -> int:
    """Return how much new memory an arm takes at most: a cache of all data, and batches."""
    return data_bytes + data_bytes // 2


def _limit_note(bytes_per_s: float) -> str:
    return f"The S3 server's own limit: {bytes_per_s / 1e6:,.0f} MB/s over {_RAW_CONNECTIONS} plain connections."


def _measured(plan: Plan, load: Workload, accelerator: str, arms: list[Arm], once: Callable[[Arm, int], Row]) -> Result:
    name = f"mlperf_{load.name}_{accelerator}"

    def said(arm: Arm, round_index: int) -> Row:
        plan.say(f"{name}: round {round_index}, {arm.name}")
        return once(arm, round_index)

    outcomes = interleave(plan.chosen(arms), plan.round_count, said, plan.say, first_round=plan.first_round)
    step_s, rate = load.steps_s[accelerator], load.bytes_per_s(accelerator)
    title = (
        f"samples of {load.record_bytes:,} bytes, batches of {load.batch_size}, a step of {step_s} s,"
        f" which takes {rate / 1e6:,.0f} MB/s; cold"
    )
    result = Result(name, title, COLUMNS, outcomes)
    ours = result.outcome("feedd")
    if ours is not None and (spread := ours.spread("utilisation")) is not None:
        result.verdicts.append(Verdict("AU with feedd", spread.middle, _AU_NEEDED, rounds=spread))
    peers = [one for one in outcomes if one.name != "feedd" and one.middle("utilisation")]
    if ours is not None and peers:
        for figure, text in (("utilisation", "AU"), ("samples_per_s", "samples/s")):
            best = max(peers, key=lambda one: one.middle(figure) or 0.0)
            result.verdicts.append(Verdict.of(f"{text}, feedd / {best.name}", ours, best, figure, 1.0))
        frugal = min(peers, key=lambda one: one.middle("cpu_s_per_gb") or float("inf"))
        text = f"CPU per GB, feedd / {frugal.name}"
        result.verdicts.append(Verdict.of(text, ours, frugal, "cpu_s_per_gb", 1.0, at_least=False))
    result.notes = [
        "AU: computing over the time of the loop, without the first step, as DLIO counts it. A computation sleeps.",
        "samples/s and MB/s: from iter() to the end of the loop, first batch included.",
    ]
    return result
