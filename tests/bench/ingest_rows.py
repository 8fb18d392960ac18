"""Bench: what ``python -m tests.bench.ingest`` measures, among the others: two runs, without faults and with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.units import GIB, MIB
from tests.bench.ingest.contenders import line_up
from tests.bench.ingest.options import IngestOptions
from tests.bench.ingest.run import IngestRun
from tests.bench.ingest.tables import results

if TYPE_CHECKING:
    from tests.bench.plan import Plan
    from tests.bench.report import Result

_TMPFS = Path("/dev/shm")


def run(plan: Plan) -> list[Result]:
    """Measure; a table per section."""
    clean = IngestOptions(
        _TMPFS,
        round_count=plan.round_count,
        peers=plan.peers is not None,
        peers_python=plan.peers.python if plan.peers else None,
        tls=True,
        size_bytes=256 * MIB if plan.quick else GIB,
        shard_bytes=64 * MIB if plan.quick else 256 * MIB,
    )
    faulty = replace(clean, peers=False, tls=False, delayed_share=0.02, error_share=0.05)
    found: list[Result] = []
    for options in (clean, faulty):
        plan.say(f"ingest: {'with' if options.faulty else 'without'} faults")
        found += results(IngestRun(options, line_up(options), plan.say).run(lambda: None))
    return found
