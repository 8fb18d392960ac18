"""Runs arms side by side: one process per arm and round, in the order A B C A B C, after a round that is not counted.

An arm is a module that reads its settings as JSON from its first argument and prints one JSON object on its last line.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import data_folder
from tests.bench.procs import MemoryPeak, descendants, memory_of, resident_beyond_shared_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = dict[str, Any]
_IMPORTS = Path(__file__).resolve().parents[2]
_MEMORY_INTERVAL_S = 0.25
_RESIDENT_INTERVAL_S = 0.02
_STEERING = ("AWS_", "FEEDD_", "LITDATA_", "SLURM_", "SM_", "OMPI_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


class ArmFailed(RuntimeError):
    """An arm ended without its line of JSON; its last words are the message."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One contender of a bench.

    Attributes:
        name: column of the table.
        module: what ``python -m`` runs.
        python: its interpreter.
        environment: variables on top of ``os.environ``.
        settings: the arm's own settings.
        imports: folder from which its module is imported, and in which it runs.
        prefix: words in front of the command, such as a wrapper.
    """

    name: str
    module: str
    python: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    imports: Path = _IMPORTS
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of one figure over the rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise."""
        return cls(min(values), statistics.median(values), max(values))


@dataclass(slots=True)
class Outcome:
    """What one arm gave: a row per counted round, the warm-up apart, and why it dropped out if it did."""

    name: str
    command: str = ""
    rounds: list[Row] = field(default_factory=list)
    warmup: Row = field(default_factory=dict)
    failure: str = ""

    def spread(self, figure: str) -> Spread | None:
        """Spread of one figure; None where no counted round has it."""
        values = [float(row[figure]) for row in self.rounds if row.get(figure) is not None]
        return Spread.of(values) if values else None

    def middle(self, figure: str) -> float | None:
        """Median of one figure."""
        spread = self.spread(figure)
        return spread.middle if spread else None

    def over(self, other: Outcome, figure: str, others: str = "") -> Spread | None:
        """Spread of the ratios to another arm in the same round, which ran a moment later on the same machine.

        Args:
            other: the arm to divide by.
            figure: key in the rows.
            others: key in the other arm's rows; the same where empty.
        """
        pairs = [
            (one.get(figure), two.get(others or figure)) for one, two in zip(self.rounds, other.rounds, strict=False)
        ]
        ratios = [float(one) / float(two) for one, two in pairs if one is not None and two]
        return Spread.of(ratios) if ratios else None


def run_arm(
    arm: Arm, extra: Mapping[str, Any], timeout_s: float, *, watch_memory: bool = False, watch_resident: bool = False
) -> Row:
    """Run one arm once in a process of its own; return its JSON with ``process_s`` (and peak memory) added.

    Watching memory takes its share of the kernel's time: ``watch_resident`` a little, ``watch_memory``, which tells
    shared pages apart, more.

    Raises:
        ArmFailed: it took too long, ended badly or printed no JSON.
    """
    settings = json.dumps({**arm.settings, **extra})
    environment = {**_plain_environment(), "PYTHONPATH": str(arm.imports), "PYTHONUNBUFFERED": "1", **arm.environment}
    started_s = time.perf_counter()
    child = subprocess.Popen(
        [*arm.prefix, str(arm.python), "-m", arm.module, settings],
        cwd=arm.imports,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    peak = MemoryPeak()
    stop = threading.Event()
    watcher = threading.Thread(target=_watch if watch_memory else _watch_resident, args=(child.pid, peak, stop))
    watched = watch_memory or watch_resident
    if watched:
        watcher.start()
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, errors = child.communicate()
        errors += f"\nexpected an end within {timeout_s} s, got none"
    finally:
        stop.set()
        if watched:
            watcher.join()
        _end_group(child.pid)
    row = _last_json(output)
    if child.returncode or row is None:
        raise ArmFailed(f"{arm.name}: exit {child.returncode}: {(errors or output)[-2000:].strip()}")
    row["process_s"] = time.perf_counter() - started_s
    if watch_memory:
        row |= {"peak_pss_bytes": peak.pss_bytes, "peak_anonymous_bytes": peak.anonymous_bytes}
    elif watch_resident:
        row["peak_resident_bytes"] = peak.resident_bytes
    return row


def _plain_environment() -> dict[str, str]:
    """Our environment without what would steer an arm: credentials, settings of feedd, a launcher's ranks.

    Arms keep bytecode in a folder of the bench, because installed packages have bytecode. Without it, a daemon of a
    checkout would compile all of feedd at each start.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING)}
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    return plain | {"PYTHONPYCACHEPREFIX": str(data_folder() / "bytecode")}


def _end_group(group: int) -> None:
    """End what an arm left behind in its session, so that no round disturbs the next."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _watch(pid: int, peak: MemoryPeak, stop: threading.Event) -> None:
    while not stop.wait(_MEMORY_INTERVAL_S):
        peak.take(memory_of([pid, *descendants(pid)]))


def _watch_resident(pid: int, peak: MemoryPeak, stop: threading.Event) -> None:
    while not stop.wait(_RESIDENT_INTERVAL_S):
        peak.resident_bytes = max(peak.resident_bytes, resident_beyond_shared_bytes([pid, *descendants(pid)]))


def _last_json(output: str) -> Row | None:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            return found if isinstance(found, dict) else None
    return None


def interleave(
    arms: Sequence[Arm],
    round_count: int,
    once: Callable[[Arm, int], Row],
    say: Callable[[str], None],
    *,
    first_round: int = 0,
) -> list[Outcome]:
    """Run every arm once per round, in turn; round 0 warms up and is kept apart. A failed arm drops out, said aloud.

    Each round begins with the next arm, so that no arm always has the same predecessor, or always the last turn.

    Args:
        arms: the contenders, in the order of the first round's turns.
        round_count: counted rounds.
        once: runs one arm in one round.
        say: prints a line.
        first_round: 1 leaves the warming up out.
    """
    outcomes = {arm.name: Outcome(arm.name, _command(arm)) for arm in arms}
    count = len(arms)
    turns = (
        (index, arms[(index + at) % count]) for index in range(first_round, round_count + 1) for at in range(count)
    )
    for round_index, arm in turns:
        outcome = outcomes[arm.name]
        if outcome.failure:
            continue
        try:
            row = once(arm, round_index)
        except ArmFailed as failure:
            outcome.failure = str(failure)
            say(f"  {arm.name} dropped out: {failure}")
            continue
        if round_index == 0:
            outcome.warmup = row
        else:
            outcome.rounds.append(row)
    return list(outcomes.values())


def _command(arm: Arm) -> str:
    return f"{arm.python.parent.parent.name}/bin/python -m {arm.module} '{json.dumps(dict(arm.settings))}'"
