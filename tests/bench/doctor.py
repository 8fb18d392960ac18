"""Bench: does ``feedd doctor`` name the cause, and does turning its knob gain what it predicts?

``python -m tests.bench --only doctor`` runs the fixed set and the drawn set. ``python -m tests.bench.doctor`` runs a
part of them, and appends each run to a file of JSON lines, from which ``--table`` prints the matrix.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from feedd.diagnosis import node
from feedd.diagnosis.diagnose import diagnose
from feedd.diagnosis.machine import GpuReader, MachineReader, MachineReading
from feedd.serve.admin_client import daemon_at
from tests.bench.arms import daemon
from tests.bench.doctor_causes import CAUSES, DRAWN_SEED, Scenario, drawn, fixed
from tests.bench.doctor_data import prepare
from tests.bench.harness import Outcome
from tests.bench.plan import empty_folder
from tests.bench.report import Column, Result, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from feedd.diagnosis.window import Window
    from tests.bench.plan import Plan

SECONDS: Final = 3.0
_WARM_S: Final = 1.5
_BEGIN_S: Final = 40.0
_RUNS: Final = 5
_CLOSE: Final = 0.25
_OTHERS_MAX: Final = 0.25
_TRIES: Final = 4
_LINK_BYTES_S: Final = 1_250_000_000
_ROOT: Final = Path(__file__).resolve().parents[2]
COLUMNS: Final = (
    Column("right of 100", "right", scale=100, digits=0, spread=True),
    Column("batches/s", "now", digits=1),
    Column("predicted", "predicted", digits=1),
    Column("after turning", "turned", digits=1),
    Column("predicted/measured", "ratio", digits=2, spread=True),
)


class _Gpus(GpuReader):
    """A GPU that tells what the scenario says."""

    def __init__(self, share: float | None) -> None:
        super().__init__()
        self._share = share

    def busy(self, _pids: Collection[int]) -> float | None:
        return self._share


class _Machine(MachineReader):
    """This machine, with the disk and the network link of the scenario."""

    def __init__(self, daemons: Iterable[int], cache_dir: str, scenario: Scenario) -> None:
        super().__init__(daemons, cache_dir)
        self._scenario = scenario
        if scenario.disk is not None:
            self.disk, self.disk_kind = "nvme1n1", scenario.disk[0]

    def read(self, pids: Iterable[int]) -> MachineReading:
        found, scenario, now_s = super().read(pids), self._scenario, time.monotonic()
        if scenario.disk is not None:
            found = replace(found, disk_busy_s=now_s * scenario.disk[1])
        if scenario.link is not None:
            found = replace(found, links={"eth0": (round(now_s * scenario.link * _LINK_BYTES_S), _LINK_BYTES_S)})
        return found


@dataclass(slots=True)
class _Job:
    """The processes of one run."""

    scenario: Scenario
    seed: int
    folder: Path
    children: list[subprocess.Popen[Any]] = field(default_factory=list)
    address: str = ""

    def start(self) -> None:
        """Start store, daemon, trainer and noise; return when the job trains, or opens if that is measured."""
        self._spawn("tests.bench.arms.doctor_noise", str(self.seed))
        store_settings = {"root": str(prepare()), "seed": self.seed, **self.scenario.store}
        store = self._spawn("tests.bench.arms.doctor_store", json.dumps(store_settings), piped=True)
        trainer_settings = {
            "url": f"s3://{self.scenario.data}/",
            "run_dir": str(self.folder),
            **self.scenario.trainer,
        }
        self.address = f"unix://{self.folder}/feedd.sock"
        trainer_settings["address"] = self.address
        trainer = self._spawn("tests.bench.arms.doctor_trainer", json.dumps(trainer_settings), piped=True)
        url = _line(store)
        served = self._serve(url)
        daemon.wait_ready(served, self.address)
        if self.scenario.bound:
            _bind(served.pid, min(os.sched_getaffinity(0)))
        (self.folder / "ready").touch()
        while _line(trainer) != ("opens" if self.scenario.opening else "began"):
            pass

    def _serve(self, url: str) -> subprocess.Popen[Any]:
        scenario = self.scenario
        program = ["tests.bench.arms.doctor_daemon", str(scenario.far_s)] if scenario.far_s else ["feedd"]
        words = ["serve", "--listen", self.address, "--cache-dir", str(self.folder / "cache")]
        words += ["--cache-size", scenario.cache_size, "--workers", str(scenario.workers), "--status", "off"]
        words += ["--log", "text", "--set", "cache.free_reserve=16MiB"]
        if scenario.parts:
            words += ["--set", f"fetch.parts_in_flight={scenario.parts}"]
        store = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
        return self._spawn(*program, *words, environment={**store, "AWS_DEFAULT_REGION": "us-east-1"})

    def _spawn(
        self, module: str, *words: str, piped: bool = False, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        with (self.folder / "feedd.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'client'}", **(environment or {})},
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def end(self) -> None:
        """End all processes."""
        for child in reversed(self.children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _line(child: subprocess.Popen[Any]) -> str:
    assert child.stdout is not None
    line = str(child.stdout.readline()).strip()
    assert line, f"expected a line from {child.args!r}, got its end"
    return line


def _bind(pid: int, core: int) -> None:
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "feedd.workers.worker" in " ".join(one.cmdline()):
                one.cpu_affinity([core])


@contextlib.contextmanager
def _running(scenario: Scenario, seed: int) -> Iterator[_Job]:
    with empty_folder() as folder:
        (folder / "cache").mkdir()
        job = _Job(scenario, seed, folder)
        limit = signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, _BEGIN_S)
        try:
            job.start()
            signal.setitimer(signal.ITIMER_REAL, 0)
            yield job
        except BaseException:
            sys.stderr.write((folder / "feedd.log").read_text(errors="replace")[-3000:])
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, limit)
            job.end()


def _late(*_: object) -> None:
    raise TimeoutError(f"expected a job that trains within {_BEGIN_S} s, got none")


def _ended(*_: object) -> None:
    raise SystemExit(1)


async def _window(job: _Job) -> Window:
    scenario = job.scenario
    async with daemon_at(job.address) as client:
        return await node.measure(
            [client],
            SECONDS,
            gpus=lambda: _Gpus(scenario.gpu),
            machine=lambda pids, folder: _Machine(pids, folder, scenario),
        )


def measure(scenario: Scenario, seed: int, warm_s: float) -> tuple[Window, float]:
    """Run a job, and return what doctor measures of it, and the cores that processes of others took meanwhile.

    The noise is scripted, so a run that other work of the machine disturbs is repeated, whatever doctor says of it.
    """
    for _ in range(_TRIES):
        with _running(scenario, seed) as job:
            time.sleep(0.0 if scenario.opening else warm_s)
            before = _cpu_s(job)
            window = asyncio.run(_window(job))
            after = _cpu_s(job)
        others = (after[0] - before[0] - (after[1] - before[1])) / window.seconds
        if others <= _OTHERS_MAX or not scenario.alone:
            break
    return window, others


def _cpu_s(job: _Job) -> tuple[float, float]:
    """Return CPU seconds of the machine, and of the run's processes and this one."""
    machine = psutil.cpu_times()
    total_s = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    own_s = 0.0
    for pid in (os.getpid(), *(child.pid for child in job.children)):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *(process.children(recursive=True) if pid != os.getpid() else ())):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    own_s += times.user + times.system
    return total_s, own_s


def turned(scenario: Scenario, knob: dict[str, str] | None) -> Scenario | None:
    """Return the scenario with the knob turned; None: it cannot be turned here."""
    if scenario.turn:
        return replace(scenario, trainer={**scenario.trainer, **scenario.turn})
    if knob is None:
        return None
    to, trainer = knob["to"], scenario.trainer
    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "--workers": lambda: {"workers": int(to)},
        "fetch.parts_in_flight": lambda: {"parts": int(to)},
        "--cache-size": lambda: {"cache_size": to},
        "decoded_cache": lambda: {"trainer": {**trainer, "options": {"decoded_cache": True}}},
        "address": lambda: {"trainer": {**trainer, "apart": False}},
        "log interval": lambda: {"trainer": {**trainer, "log_every": int(to)}},
    }
    change = changes.get(knob["option"])
    return None if change is None else replace(scenario, **change())


def run_once(scenario: Scenario, seed: int, *, gain: bool = True) -> dict[str, Any]:
    """Run a scenario, and once more with the knob turned; return the row of both."""
    window, others = measure(scenario, seed, _WARM_S)
    said = diagnose(window).as_json()
    row: dict[str, Any] = {
        "cause": scenario.name,
        "expected": scenario.verdict,
        "verdict": said["verdict"],
        "right": said["verdict"] == scenario.verdict,
        "seed": seed,
        "simulated": scenario.is_simulated,
        "others": others,
        "now": said["gain"]["now"],
        "predicted": said["gain"]["predicted"],
        "said": said,
        "window": repr(window),
    }
    other = turned(scenario, said["knob"]) if gain and row["right"] and row["predicted"] is not None else None
    if other is not None:
        after, row["turned_others"] = measure(other, seed, scenario.turned_warm_s)
        row["turned"] = after.batches_per_s
        row["ratio"] = row["predicted"] / after.batches_per_s if after.batches_per_s else None
        row["turned_window"] = repr(after)
    return row


def matrix(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the confusion matrix as lines of Markdown: a row for each cause, with what doctor said how often."""
    lines = ["| cause | runs | right | said instead | predicted over measured gain |", "|---|---|---|---|---|"]
    for cause in CAUSES:
        found = [row for row in rows if row["cause"] == cause]
        if not found:
            continue
        wrong = Counter(row["verdict"] for row in found if not row["right"])
        others = ", ".join(f"`{name}` {count}" for name, count in wrong.most_common()) or "-"
        ratios = [row["ratio"] for row in found if row.get("ratio") is not None]
        gain = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
        mark = " (simulated)" if found[0]["simulated"] else ""
        right = sum(row["right"] for row in found)
        lines.append(f"| `{cause}`{mark} | {len(found)} | {right} | {others} | {gain} |")
    right, ratios = sum(row["right"] for row in rows), [row["ratio"] for row in rows if row.get("ratio") is not None]
    close = sum(1 - _CLOSE <= ratio <= 1 + _CLOSE for ratio in ratios)
    lines.append(f"| all | {len(rows)} | {right} ({right / len(rows):.1%}) | | {close} of {len(ratios)} within 25 % |")
    return lines


def run(plan: Plan) -> list[Result]:
    """Run both sets."""
    prepare()
    runs = 1 if plan.quick else _RUNS
    names = plan.arms or tuple(CAUSES)
    sets = {"doctor": [(fixed(name), index) for index in range(runs) for name in names]}
    if not plan.quick:
        sets["doctor_drawn"] = [(scenario, 1000 + index) for index, scenario in enumerate(drawn())]
    results = []
    for title, jobs in sets.items():
        rows = []
        for scenario, seed in jobs:
            plan.say(f"{title}: {scenario.name}, noise {seed}")
            rows.append(run_once(scenario, seed))
        results.append(_result(title, rows))
    return results


def _result(name: str, rows: list[dict[str, Any]]) -> Result:
    outcomes = {row["cause"]: Outcome(row["cause"]) for row in rows}
    for row in rows:
        outcomes[row["cause"]].rounds.append(row)
    result = Result(name, f"causes, {SECONDS:.0f} s measured, beside noise", COLUMNS, list(outcomes.values()))
    result.verdicts = [Verdict("right verdicts", sum(row["right"] for row in rows) / len(rows), 0.95)]
    result.notes = matrix(rows)
    return result


def main() -> None:
    """Run a part, or print the matrix of what was run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.doctor", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; runs that it has are left out")
    parser.add_argument("--set", choices=("fixed", "drawn"), default="fixed")
    parser.add_argument("--seed", type=int, default=DRAWN_SEED, help="of the drawn set")
    parser.add_argument("--causes", nargs="+", choices=list(CAUSES), default=list(CAUSES), metavar="NAME")
    parser.add_argument("--runs", type=int, default=_RUNS)
    parser.add_argument("--within", type=float, default=100.0, help="begin no run after so many seconds")
    parser.add_argument("--alone", choices=("yes", "no"), help="only causes that need the machine alone, or the others")
    parser.add_argument("--no-gain", action="store_true", help="turn no knob")
    parser.add_argument("--table", action="store_true", help="print the matrix only")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, _ended)  # so that the processes of a run end too
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    if chosen.table:
        sys.stdout.write("\n".join(matrix(rows)) + "\n")
        return
    jobs = [(fixed(name), index) for index in range(chosen.runs) for name in chosen.causes]
    if chosen.set == "drawn":
        jobs = [(scenario, 1000 + index) for index, scenario in enumerate(drawn(chosen.seed))]
    if chosen.alone:
        jobs = [(scenario, seed) for scenario, seed in jobs if scenario.alone == (chosen.alone == "yes")]
    done = {(row["cause"], row["seed"]) for row in rows}
    todo = [(scenario, seed) for scenario, seed in jobs if (scenario.name, seed) not in done]
    began_s = time.monotonic()
    prepare()
    for scenario, seed in todo:
        if time.monotonic() - began_s > chosen.within:
            break
        row = run_once(scenario, seed, gain=not chosen.no_gain)
        with chosen.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {
            key: row.get(key)
            for key in ("cause", "verdict", "right", "now", "predicted", "turned", "ratio", "others", "turned_others")
        }
        sys.stdout.write(f"{time.monotonic() - began_s:6.1f} {json.dumps(shown)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{max(0, len(todo))} begun with, see {chosen.out}\n")


if __name__ == "__main__":
    random.seed(0)
    main()
