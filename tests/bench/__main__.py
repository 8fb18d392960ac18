"""``python -m tests.bench``: runs the benches side by side with peers, prints tables, writes every round as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tests.bench import (
    against,
    boot_scan,
    boundary,
    columns,
    device,
    doctor,
    epoch,
    eviction,
    fault_table,
    files,
    first_batch,
    handoff,
    held,
    ingest_rows,
    jpeg,
    lag,
    lanes,
    listing,
    machine,
    measuring,
    mlperf,
    objects,
    pack,
    parts,
    peer_cache,
    plan_speed,
    ranks,
    restart,
    s3_bytes,
    shards,
    simulate,
    spans,
    tokens,
    utilisation,
)
from tests.bench.peers import HOW_TO_INSTALL, ROOT, Peers, find_peers
from tests.bench.plan import Plan
from tests.bench.report import Result, show

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHES: dict[str, Callable[[Plan], Result | list[Result]]] = {
    "handoff": handoff.run,
    "epoch": epoch.run,
    "bytes": s3_bytes.run,
    "first_batch": first_batch.run,
    "boot_scan": boot_scan.run,
    "eviction": eviction.run,
    "faults": fault_table.run,
    "ingest": ingest_rows.run,
    "plan_speed": plan_speed.run,
    "objects": objects.run,
    "pack": pack.run,
    "pack_s3": pack.run_s3,
    "boundary": boundary.run,
    "jpeg": jpeg.run,
    "shared": jpeg.run_shared,
    "memory": jpeg.run_memory,
    "memory_one": jpeg.run_memory_one,
    "columns": columns.run,
    "tokens": tokens.run,
    "lag": lag.run,
    "parts": parts.run,
    "ranks": ranks.run,
    "lanes": lanes.run,
    "peer_cache": peer_cache.run,
    "listing": listing.run,
    "frozen": listing.run_frozen,
    "device": device.run,
    "shards": shards.run,
    "spans": spans.run,
    "utilisation": utilisation.run,
    "utilisation_limit": utilisation.run_limit,
    "mlperf": mlperf.run,
    "mlperf_unet3d": mlperf.run_unet3d,
    "doctor": doctor.run,
    "measuring": measuring.run,
    "files": files.run,
    "restart": restart.run,
    "held": held.run,
    "simulate": simulate.run,
}
_QUICK_ROUNDS = 1
_DEFAULT_ROUNDS = 5
_SERVER_CONNECTIONS = 4
_FILE_WIDTH = 190


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), default=list(BENCHES), metavar="NAME")
    parser.add_argument("--rounds", type=int, help=f"counted rounds per arm; {_DEFAULT_ROUNDS} unless --quick")
    parser.add_argument("--quick", action="store_true", help="small data, one round: to see that all arms run")
    parser.add_argument("--peers", choices=("auto", "on", "off"), default="auto", help="on: fail where they are absent")
    parser.add_argument("--arms", nargs="+", default=[], metavar="NAME", help="only these rows, named as in the table")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="ratios to another checkout, runs in turn")
    parser.add_argument("--json", type=Path, help="where every round goes; bench-results/<time>.json")
    return parser.parse_args()


def _peers(choice: str, console: Console) -> Peers | None:
    peers = None if choice == "off" else find_peers()
    if peers is None and choice == "on":
        sys.exit(HOW_TO_INSTALL)
    if peers is None and choice == "auto":
        console.print(HOW_TO_INSTALL, style="yellow")
    return peers


def _server_limit(plan: Plan, console: Console) -> float | None:
    """Measure what the S3 server itself can send, in bytes per second, where a bench used it."""
    if plan.used_server is None:
        return None
    paths = [f"/bench/tar/shard-{index:06d}.tar" for index in range(plan.data.shape.shard_count)]
    rates = [plan.used_server.raw_bytes_per_s(paths, _SERVER_CONNECTIONS) for _ in range(3)]
    rate = sorted(rates)[1]
    console.print(f"\nthe S3 server's own limit: {rate / 1e6:,.0f} MB/s over {_SERVER_CONNECTIONS} plain connections")
    return rate


def _run(names: list[str], plan: Plan, results: dict[str, Any], console: Console) -> bool:
    """Run benches, note and show their results; return whether an arm failed."""
    failed = False
    for name in names:
        found = BENCHES[name](plan)
        for result in found if isinstance(found, list) else [found]:
            results[result.name] = result.as_json()
            show(result, console)
            failed |= any(outcome.failure for outcome in result.outcomes)
    return failed


def main() -> int:
    """Run; the exit status is 1 where an arm failed, whatever the figures."""
    chosen, console = _arguments(), Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)  # tables are for reading, also where output goes to a file
    peers = None if chosen.against else _peers(chosen.peers, console)
    rounds = chosen.rounds or (_QUICK_ROUNDS if chosen.quick else _DEFAULT_ROUNDS)
    started_s = time.time()  # noqa: TID251 - when it ran is part of the result
    began_s = time.monotonic()
    document: dict[str, Any] = {
        "command": " ".join(["python -m tests.bench", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_s)),
        "rounds": rounds,
        "machine": machine.facts(peers),
        "benches": {},
    }
    plan = Plan(
        rounds,
        chosen.quick,
        peers,
        lambda text: console.print(text, style="dim", highlight=False),
        arms=tuple(chosen.arms),
    )
    failed = False
    try:
        if chosen.against:
            other, wanted = chosen.against, chosen.arms
            document |= against.compare(other, chosen.only, rounds, console, arms=wanted, quick=chosen.quick)
        else:
            failed = _run(chosen.only, plan, document["benches"], console)
            document["s3_server_bytes_per_s"] = _server_limit(plan, console)
    finally:
        plan.close()
    document["elapsed_s"] = time.monotonic() - began_s
    target = chosen.json or ROOT / "bench-results" / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(started_s))}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    facts = document["machine"]
    console.print(
        f"{facts['cores']} cores, {facts['cpu']}, kernel {facts['kernel']}, python {facts['python']},"
        f" load before {facts['load_average_before']:.1f}; {document['elapsed_s']:.0f} s; every round in {target}",
        highlight=False,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
