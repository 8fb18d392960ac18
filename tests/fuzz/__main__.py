"""``python -m tests.fuzz PARSER... [--seconds 30] [--seed N] [--plain] [--input FILE]``: all of them without a name.

``--tries N`` ends after so many inputs instead: the same ones on any machine, each parser in a forked process.

With atheris (the extra ``fuzz``) coverage guides what is tried; without it, or with ``--plain``, a seeded mutator does
the same tries each time. The process may take ``MEMORY_BYTES`` more than it has at the start, and an input 10 s: more
is a finding, like any error that is no refusal. What was tried last is in ``--keep`` (``PARSER.last``), also where the
process died of it.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.util
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.fuzz.mutate import SIZE_MAX, mutated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.targets import Target

MEMORY_BYTES: Final = 2 << 30
"""Far beyond what 64 KiB may need, and enough for the largest image that is decoded at all."""
INPUT_S: Final = 10
INPUT_BYTES_MAX: Final = 1 << 20


def _alarm(*_: object) -> None:
    raise TimeoutError(f"expected an answer within {INPUT_S} s")


@contextmanager
def _kept(path: Path) -> Iterator[mmap.mmap]:
    """Map a file that holds what is being tried, with its length in front."""
    with path.open("w+b") as file:
        file.truncate(8 + INPUT_BYTES_MAX)
        with mmap.mmap(file.fileno(), 8 + INPUT_BYTES_MAX) as kept:
            yield kept


class Tries:
    """Gives inputs to a target, with bounds on time, and counts."""

    def __init__(self, target: Target, kept: mmap.mmap) -> None:
        self._judge = importlib.import_module("tests.fuzz.judge")
        self._target = target
        self._kept = kept
        self.count = 0
        self.read_count = 0

    def __call__(self, data: bytes) -> None:
        """Try one."""
        if len(data) > INPUT_BYTES_MAX:
            return
        self._kept[: 8 + len(data)] = len(data).to_bytes(8, "little") + data
        self.count += 1
        signal.alarm(INPUT_S)
        faulthandler.dump_traceback_later(3 * INPUT_S, exit=True)
        try:
            self.read_count += self._judge.verdict(self._target.read, data)
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.alarm(0)


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))


def _plainly(name: str, tries: Tries, seeds: list[bytes], options: argparse.Namespace) -> int:
    source = random.Random(f"{name} {options.seed}")
    began_s = time.monotonic()
    first = tries.count
    while tries.count - first < options.tries if options.tries else time.monotonic() < began_s + options.seconds:
        data = mutated(seeds, source)
        try:
            tries(data)
        except BaseException:
            path = options.keep / f"{name}.{tries.count}.found"
            path.write_bytes(data)
            print(f"{name}: found at input {tries.count} of seed {options.seed}: {path}", file=sys.stderr, flush=True)
            raise
    took_s = time.monotonic() - began_s
    print(f"{name}: {tries.count} inputs in {took_s:.1f} s, {tries.read_count} of them read", flush=True)
    return 0


def _guided(name: str, atheris: Any, tries: Tries, seeds: list[bytes], options: argparse.Namespace) -> int:
    """Let coverage choose; does not return where something is found."""
    corpus = options.keep / f"{name}.corpus"
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = {
        "max_total_time": options.seconds,
        "max_len": SIZE_MAX,
        "seed": options.seed,
        "rss_limit_mb": 0,
        "timeout": 3 * INPUT_S,
        "artifact_prefix": f"{options.keep}/{name}.",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    atheris.Setup([name, *(f"-{flag}={value}" for flag, value in flags.items()), str(corpus)], tries)
    atheris.Fuzz()
    return 0


def _one(name: str, options: argparse.Namespace) -> int:
    """Fuzz one target in this process."""
    atheris = None
    if not options.plain and importlib.util.find_spec("atheris") is not None:
        atheris = importlib.import_module("atheris")
        with atheris.instrument_imports(include=["feedd"]):
            targets = importlib.import_module("tests.fuzz.targets")
    else:
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]
    seeds = list(target.seeds())
    signal.signal(signal.SIGALRM, _alarm)
    faulthandler.enable()
    with _kept(options.keep / f"{name}.last") as kept:
        tries = Tries(target, kept)
        if options.input:
            tries(options.input.read_bytes())
            print("read" if tries.read_count else "refused")
            return 0
        for seed in seeds:
            tries(seed)
        assert tries.read_count == len(seeds), f"{name}: expected good seeds"
        _bound_memory()
        if atheris is None:
            return _plainly(name, tries, seeds, options)
        return _guided(name, atheris, tries, seeds, options)


def _forked(name: str, options: argparse.Namespace) -> int:
    """Fuzz one target in a child of this process, which has imported what all need; return how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        code = _one(name, options)
    except BaseException:  # noqa: BLE001 - told, and this child ends here
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> int:
    """Fuzz what is named; each of several in a process of its own, for what one breaks is not the next one's."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("parsers", nargs="*", help="names in tests/fuzz/targets.py; none: all")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--tries", type=int, default=0, help="so many inputs, whatever time they take; implies --plain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="the seeded mutator, also where atheris is installed")
    parser.add_argument("--input", type=Path, help="try the bytes of this file, and nothing else")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "feedd-fuzz")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    options.plain = options.plain or options.tries > 0
    if len(options.parsers) == 1:
        return _one(options.parsers[0], options)
    names = options.parsers or list(importlib.import_module("tests.fuzz.targets").TARGETS)
    if options.tries:
        importlib.import_module("tests.fuzz.judge")
        importlib.import_module("tests.fuzz.targets")
        return _verdict([name for name in names if _forked(name, options)])
    command = [sys.executable, "-m", "tests.fuzz", f"--seconds={options.seconds}", f"--seed={options.seed}"]
    command += [f"--keep={options.keep}", *(["--plain"] if options.plain else [])]
    return _verdict(
        [name for name in names if subprocess.run([*command, name], check=False, env=os.environ).returncode]
    )


def _verdict(failed: list[str]) -> int:
    if failed:
        print(f"found something in: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
