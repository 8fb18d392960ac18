"""Bench: JPEGs, long enough that starting up does not count: against the peers, against the decode function alone.

And what several trainers on one node cost: jobs that share a decode, and the memory of four ranks.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import BUCKET, LONG
from tests.bench.harness import Arm, Row, interleave, run_arm
from tests.bench.plan import BATCH_SIZE, PREFETCH_FACTOR, WORKERS, Plan
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.harness import Outcome

_TIMEOUT_S = 600.0
_TOUCHED_BYTES = 3 << 30  # more than any arm writes into memory that is new
_TRAINERS = 4
_RANKS = "tests.bench.arms.ranks"
_ALONE = "decode function alone"
_BESIDE = f"{_ALONE}, a bare receiver beside it"
_WARM = "feedd, cache warm"
_DECODED = "feedd, decoded cache"
_USUAL = ", usual"
_USUAL_BATCHES = 40  # takes them as long as the others take for a whole epoch
_FLOOR = "floor"
_RATE = Column("samples/s", "samples_per_s", spread=True, digits=0)
_CPU = Column("CPU ms/sample", "cpu_ms_per_sample", digits=3, spread=True)
_PSS = Column("peak PSS MB", "peak_pss_bytes", scale=1e-6, digits=0, warmup=True)
COLUMNS = (
    _RATE,
    Column("after 1st batch", "samples_per_s_after_first", digits=0),
    _CPU,
    Column("stolen ms/sample", "stolen_ms_per_sample", digits=3),
    Column("1st batch s", "first_batch_s", digits=2),
    _PSS,
)


@contextlib.contextmanager
def _long(plan: Plan) -> Iterator[Plan]:
    """The same run over more pictures, from a server of its own."""
    longer = Plan(plan.round_count, plan.quick, plan.peers, plan.say, None if plan.quick else LONG, plan.arms)
    try:
        yield longer
    finally:
        longer.close()


def _touching(arm: Arm) -> Arm:
    """Return an arm that writes gigabytes, with memory to do so."""
    return replace(arm, settings={**arm.settings, "touched_bytes": _TOUCHED_BYTES})


def run(plan: Plan) -> Result:
    """Measure feedd, the peers with the same decode function and with their users' own, and that function alone."""
    with _long(plan) as long:
        shape = long.data.shape
        part = long.peer_arms(decoder="usual", stop_after=_USUAL_BATCHES)
        usual = [replace(arm, name=arm.name + _USUAL) for arm in part]
        warm = long.feedd_arm(_WARM, cache="warm")
        decoded = long.feedd_arm(_DECODED, cache="warm", decoded_cache=True)
        peers = map(_touching, [*long.peer_arms(), *usual])
        arms = [_touching(long.feedd_arm()), warm, decoded, *peers, _alone(long), _touching(_beside(long))]

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"jpeg: round {round_index}, {arm.name}")
            if arm.name in {_ALONE, _BESIDE}:
                return run_arm(arm, {}, _TIMEOUT_S)
            return long.once(arm, round_index, _TIMEOUT_S)

        outcomes = interleave(long.chosen(arms), plan.round_count, once, plan.say, first_round=plan.first_round)
    title = f"{shape.sample_count} JPEGs 500x375 -> 224, batch {BATCH_SIZE}, {WORKERS} decode processes, shuffled"
    result = Result("jpeg", title, COLUMNS, outcomes)
    result.verdicts = _verdicts(result)
    result.notes = [
        (
            "Whole epochs from iter() to the end, caches empty but for 'cache warm' and 'decoded cache', where another"
            " trainer had an epoch before; all arms share the machine with the S3 server they read from, the decode"
            " function alone has it for itself. The bare receiver beside it takes the same shards from that server and"
            " does nothing with them: what no loader with an empty cache can pass."
        ),
        "CPU: the process tree from iter() to the end: trainer, workers, daemon, curl; not the S3 server.",
        (
            "'usual': Pillow, Resize(256), CenterCrop(224) as torchvision does them; uint8, without ToTensor's floats."
            f" {_USUAL_BATCHES} batches of an epoch."
        ),
        f"Look-ahead of the peers: prefetch_factor {PREFETCH_FACTOR}; of feedd: what the daemon chooses (4 batches).",
        (
            "Before iter() each trainer with an empty cache touches 3 GiB and frees them: a virtual machine's host is"
            " slow to find new memory. Stolen: what the host took of both cores meanwhile, for that among others."
        ),
    ]
    return result


def _alone(plan: Plan) -> Arm:
    settings = {
        "workers": WORKERS,
        "sample_count": plan.data.shape.sample_count,
        "folder": str(plan.data.root / BUCKET / "tar"),
    }
    return Arm(_ALONE, "tests.bench.arms.decode_alone", Path(sys.executable), {}, settings)


def _beside(plan: Plan) -> Arm:
    arm = _alone(plan)
    return replace(arm, name=_BESIDE, settings={**arm.settings, "bucket": BUCKET, "endpoint": plan.server.url})


def _best(result: Result, figure: str, *, usual: bool) -> Outcome | None:
    """The peer with the highest rate, or the lowest cost."""
    peers = [one for one in result.outcomes if not one.name.startswith(("feedd", _ALONE)) and one.middle(figure)]
    peers = [one for one in peers if one.name.endswith(_USUAL) == usual]
    if not peers:
        return None
    return (max if figure == "samples_per_s" else min)(peers, key=lambda one: one.middle(figure) or 0.0)


def _verdicts(result: Result) -> list[Verdict]:
    ours = result.outcome("feedd")
    if ours is None:
        return []
    found = []
    wanted = (("samples_per_s", False, 1.25), ("samples_per_s", True, 2.0), ("cpu_ms_per_sample", False, 0.8))
    for figure, usual, target in wanted:
        peer = _best(result, figure, usual=usual)
        if peer is not None:
            what = "samples/s" if figure == "samples_per_s" else "CPU per sample"
            text = f"{what}, feedd / {peer.name} (the best peer{' of these' if usual else ''})"
            found.append(Verdict.of(text, ours, peer, figure, target, at_least=figure == "samples_per_s"))
    warm, decoded = result.outcome(_WARM), result.outcome(_DECODED)
    if warm is not None and decoded is not None:
        text = f"samples/s in later epochs, {decoded.name} / {warm.name}"
        found.append(Verdict.of(text, decoded, warm, "samples_per_s", 6.0))
    for name, one in ((_ALONE, ours), (_ALONE, warm), (_BESIDE, ours)):
        alone = result.outcome(name)
        if alone is None or one is None:
            continue
        for figure, what in (("samples_per_s", "samples/s"), ("samples_per_s_after_first", "behind the first batch")):
            found.append(Verdict.of(f"{what}, {one.name} / {name}", one, alone, figure, 0.92, peers="samples_per_s"))
    return found


def _trainers(arm: Arm, **settings: Any) -> Arm:
    """Return an arm that runs several of ``arm``'s trainers."""
    return replace(arm, module=_RANKS, settings={**arm.settings, "module": arm.module, "whole": True, **settings})


def run_shared(plan: Plan) -> Result:
    """Measure four jobs that share a decode against one."""
    with _long(plan) as long:
        one = replace(
            _trainers(long.feedd_arm(), job_count=1, rank_count=1, touched_bytes=_TOUCHED_BYTES), name="1 job"
        )
        four = _trainers(long.feedd_arm(share="bench"), job_count=_TRAINERS, rank_count=1, touched_bytes=_TOUCHED_BYTES)
        four = replace(four, name=f"{_TRAINERS} jobs that share")

        def once(arm: Arm, round_index: int) -> Row:
            plan.say(f"shared: round {round_index}, {arm.name}")
            if round_index == long.first_round:  # whose memory is measured
                arm = replace(arm, settings={**arm.settings, "touched_bytes": 0})
            return long.once(arm, round_index, _TIMEOUT_S)

        outcomes = interleave([one, four], plan.round_count, once, plan.say, first_round=plan.first_round)
        title = f"jobs that share one decode, {long.data.shape.sample_count} JPEGs each, batch {BATCH_SIZE}"
    result = Result("shared", title, (_RATE, _CPU, _PSS), outcomes)
    first, second = (result.outcome(arm.name) for arm in (one, four))
    if first and second:
        text = f"aggregate samples/s, {second.name} / {first.name}"
        result.verdicts = [Verdict.of(text, second, first, "samples_per_s", 3.5)]
    result.notes = ["Aggregate: samples of all jobs by the time of the slowest, from its iter() to its end."]
    return result


def run_memory(plan: Plan) -> Result:
    """Measure the peak memory of four ranks and what feeds them, with as many batches ahead for each rank."""
    # One torch worker of each rank: fewer there cannot be.
    return _memory(plan, "memory", _TRAINERS, {"workers": 1, "prefetch_factor": PREFETCH_FACTOR})


def run_memory_one(plan: Plan) -> Result:
    """Measure the peak memory of one rank and what feeds it, with as many workers and batches ahead for all."""
    return _memory(plan, "memory_one", 1, {"workers": WORKERS, "prefetch_factor": PREFETCH_FACTOR // WORKERS})


def _memory(plan: Plan, name: str, rank_count: int, ahead: dict[str, Any]) -> Result:
    settings: dict[str, Any] = {"job_count": 1, "rank_count": rank_count, "whole": False}
    arms = [replace(_trainers(plan.feedd_arm(), **settings, prefetch=PREFETCH_FACTOR), name="feedd")]
    arms.append(_trainers(plan.feedd_arm(_FLOOR, "floor"), **settings))
    arms += [_trainers(arm, **settings, **ahead) for arm in plan.peer_arms()]

    def once(arm: Arm, round_index: int) -> Row:
        plan.say(f"{name}: round {round_index}, {arm.name}")
        row = plan.once(arm, plan.first_round, _TIMEOUT_S)  # memory is what every round samples here
        return {**row, "samples_per_s": None} if arm.name == _FLOOR else row

    outcomes = interleave(arms, plan.round_count, once, plan.say, first_round=plan.first_round)
    columns = (
        Column("peak PSS MB", "peak_pss_bytes", scale=1e-6, digits=0, spread=True),
        Column("of it anonymous", "peak_anonymous_bytes", scale=1e-6, digits=0),
        Column("samples/s", "samples_per_s", digits=0),
    )
    ranks = f"{rank_count} ranks" if rank_count > 1 else "one rank"
    result = Result(name, f"{ranks}, batch {BATCH_SIZE} each, {PREFETCH_FACTOR} ahead", columns, outcomes)
    ours = result.outcome("feedd")
    peers = [one for one in outcomes if one.name not in {"feedd", _FLOOR} and one.middle("peak_pss_bytes")]
    if ours and peers:
        best = min(peers, key=lambda one: one.middle("peak_pss_bytes") or 0.0)
        text = f"peak PSS, feedd / {best.name} (the smallest peer)"
        result.verdicts = [
            Verdict.of(text, ours, best, "peak_pss_bytes", 0.5 if rank_count > 1 else 0.9, at_least=False)
        ]
    result.notes = [
        (
            f"feedd: the daemon with {WORKERS} decode workers, and {ranks}. Peers: {ranks} with torch workers"
            f" ({ahead['workers']} each, prefetch_factor {ahead['prefetch_factor']}): as many batches ahead of each"
            " rank. PSS of the whole tree, sampled four times a second."
        ),
        "Batches ahead are shared memory and count, once; caches on tmpfs count only where they are mapped.",
        (
            f"{_FLOOR}: {ranks} importing torch, joining a group of gloo and holding {PREFETCH_FACTOR} batches each in"
            " shared memory, and nothing that reads or decodes: what no loader can go below."
        ),
    ]
    return result
