"""``python -m tests.fuzz PARSER... [--seconds 30] [--seed N] [--plain] [--input FILE]``: all of them without a name.

``--tries N`` ends after so many inputs instead: the same ones on any machine, each parser in a forked process.

A parser whose library may loop (``MAY_LOOP``) runs in forked processes, too, and always plainly. An input that costs
the library more than ``LOOP_CPU_S`` ends its process and is told as endless; the inputs after it follow in another one.

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
import struct
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
CODE_CPU_S: Final = 3
"""CPU time after which an input is a finding, where the library may loop: Python code has had its chance to raise."""
LOOP_CPU_S: Final = 6
ENDLESS_PER_MILLE_MAX: Final = 10
"""More inputs in which a library loops are a finding."""
MAY_LOOP: Final = frozenset({"hdf5"})
"""libhdf5 reads some damaged heaps for ever. In feedd the deadline of a making ends that."""


_HEAD: Final = struct.Struct("<qqq")


def _alarm(*_: object) -> None:
    raise TimeoutError(f"expected an answer within {INPUT_S} s, or {CODE_CPU_S} s of CPU time")


@contextmanager
def _kept(path: Path) -> Iterator[mmap.mmap]:
    """Map a file that holds what is being tried, after its length, its number and how many were read before."""
    with path.open("w+b") as file:
        file.truncate(_HEAD.size + INPUT_BYTES_MAX)
        with mmap.mmap(file.fileno(), _HEAD.size + INPUT_BYTES_MAX) as kept:
            yield kept


class Tries:
    """Gives inputs to a target, with bounds on time, and counts."""

    def __init__(self, target: Target, kept: mmap.mmap, *, may_loop: bool) -> None:
        self._judge = importlib.import_module("tests.fuzz.judge")
        self._target = target
        self._kept = kept
        self._may_loop = may_loop
        self.count = 0
        self.read_count = 0

    def __call__(self, data: bytes) -> None:
        """Try one."""
        if len(data) > INPUT_BYTES_MAX:
            return
        self.count += 1
        self._kept[: _HEAD.size + len(data)] = _HEAD.pack(len(data), self.count, self.read_count) + data
        signal.alarm(INPUT_S)
        if self._may_loop:
            signal.setitimer(signal.ITIMER_PROF, CODE_CPU_S)
            signal.setitimer(signal.ITIMER_VIRTUAL, LOOP_CPU_S)  # ends the process
        faulthandler.dump_traceback_later(3 * INPUT_S, exit=True)
        try:
            self.read_count += self._judge.verdict(self._target.read, data)
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))


def _plainly(name: str, tries: Tries, seeds: list[bytes], options: argparse.Namespace) -> int:
    source = random.Random(f"{name} {options.seed}")
    began_s = time.monotonic()
    first = tries.count
    for _ in range(options.tried):
        mutated(seeds, source)
    tries.count += options.tried
    tries.read_count += options.read
    end_s = options.end_s or began_s + options.seconds
    while tries.count - first < options.tries if options.tries else time.monotonic() < end_s:
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


def _around_loops(name: str, options: argparse.Namespace) -> int:
    """Fuzz a parser whose library may loop: where it does, go on behind that input; return how the last child ended."""
    seed_count = len(importlib.import_module("tests.fuzz.targets").TARGETS[name].seeds())
    options.end_s = time.monotonic() + options.seconds
    last = options.keep / f"{name}.last"
    endless_count = 0
    while (code := _forked(name, options)) == -signal.SIGVTALRM:
        endless_count += 1
        size, count, read_count = _HEAD.unpack_from(data := last.read_bytes())
        (options.keep / f"{name}.{count}.endless").write_bytes(data[_HEAD.size : _HEAD.size + size])
        options.tried, options.read = count - seed_count, read_count - seed_count
    allowed = 3 + options.tried * ENDLESS_PER_MILLE_MAX // 1000
    print(f"{name}: {endless_count} endless", file=sys.stderr, flush=True)
    return code or int(endless_count > allowed)


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
    if not options.plain and name not in MAY_LOOP and importlib.util.find_spec("atheris") is not None:
        atheris = importlib.import_module("atheris")
        with atheris.instrument_imports(include=["feedd"]):
            targets = importlib.import_module("tests.fuzz.targets")
    else:
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]
    seeds = list(target.seeds())
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGPROF, _alarm)
    faulthandler.enable()
    with _kept(options.keep / f"{name}.last") as kept:
        tries = Tries(target, kept, may_loop=name in MAY_LOOP)
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
    options.end_s = options.tried = options.read = 0
    if len(options.parsers) == 1:
        (name,) = options.parsers
        return _around_loops(name, options) if name in MAY_LOOP and not options.input else _one(name, options)
    names = options.parsers or list(importlib.import_module("tests.fuzz.targets").TARGETS)
    if options.tries:
        importlib.import_module("tests.fuzz.judge")
        importlib.import_module("tests.fuzz.targets")
        return _verdict(
            [
                name
                for name in names
                if (_around_loops if name in MAY_LOOP else _forked)(name, argparse.Namespace(**vars(options)))
            ]
        )
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
