"""Stored mutants of the product: each dies today, and has to die as long as its place exists.

``python -m tests.mutants check [ROOM ...]`` makes each mutant in memory and runs the test that is named with it.
``python -m tests.mutants draw ROOM ... [--count 40] [--tests PATH ...]`` looks for new tests of mutants that live or
have lost their test, and draws mutants until the list has so many.
``python -m tests.mutants gone REASON ROOM ... [--function PATTERN]`` notes why places that are not found are gone.

A room's list is ``tests/mutants/<room>.jsonl``; the room is where its mutants were drawn. Code and tests that have
moved are found by name.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from tests.mutants.mutations import Key, Mutant, find, mutants, places
from tests.mutants.runner import Forks, run
from tests.tidy.tree import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FOLDER: Final = ROOT / "tests" / "mutants"
_NOUNS: Final = "model"  # the room of modules of feedd that are in no folder
_SEED: Final = 47
_PER_TEST: Final = 3  # of a parametrized one
_TRIED_TESTS: Final = 10
_TRIED_LIMIT_S: Final = 20.0
_COVERING_LIMIT_S: Final = 60.0


def rooms() -> list[str]:
    """Return the rooms with a list."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def stored(room: str) -> list[Mutant]:
    """Return the list of a room."""
    path = FOLDER / f"{room}.jsonl"
    return msgspec.json.Decoder(Mutant).decode_lines(path.read_bytes()) if path.exists() else []


def _store(room: str, listed: list[Mutant]) -> None:
    listed = sorted(listed, key=lambda one: (one.function, one.old, one.new))
    (FOLDER / f"{room}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(listed))


def _name(test: str) -> str:
    return test.rpartition("::")[2].partition("[")[0]


def _files(tests: set[str]) -> list[str]:
    """Return the files that hold these tests today, or others of the same name."""
    found, lost = set[str](), set[str]()
    for test in tests:
        path = test.partition("::")[0]
        held = (ROOT / path).exists() and f"def {_name(test)}(" in (ROOT / path).read_text()
        (found if held else lost).add(path if held else _name(test))
    for file in tracked() if lost else ():
        if file.name.startswith("test_") and lost & set(re.findall(r"def (test_\w+)", (ROOT / file).read_text())):
            found.add(str(file))
    return sorted(found)


def check(room: str) -> list[str]:
    """Print what became of a room's mutants, and return the complaints."""
    listed, verdicts = stored(room), Counter[str]()
    complaints = [f"{room}: expected {len(listed)} mutants to be judged, got none"]

    def judge(forks: Forks) -> None:
        complaints.clear()
        for one in listed:
            verdict = _verdict(forks, one)
            verdicts[verdict] += 1
            if verdict not in {"killed", "gone"}:
                complaints.append(f"{room}: {verdict}: {one.function}: {one.old}  ->  {one.new}  ({one.test})")

    run(judge, _files({one.test for one in listed if not one.gone}))
    print(room, dict(verdicts), flush=True)
    return complaints


def _verdict(forks: Forks, mutant: Mutant) -> str:
    if find(mutant) is None:
        return "gone" if mutant.gone else "not found, and no reason is given"
    if mutant.gone:
        return "listed as gone, but found"
    tests = (
        [mutant.test]
        if mutant.test in forks.tests
        else [one for one in forks.tests if _name(one) == _name(mutant.test)]
    )
    if not tests:
        return "its test is gone"
    failed = forks.first_failure(tests, mutant)
    if not failed:
        return "alive" if failed == "" else "not judged, because its test did not end"
    return "killed" if forks.first_failure([failed]) == "" else "not judged, because its test fails without it"


def draw(room: str, count: int, paths: Sequence[str]) -> None:
    """Renew a room's list: tests for mutants that have none, then new mutants."""

    def work(forks: Forks) -> None:
        seeded = random.Random(f"{_SEED}:{room}")
        covering = forks.covering(_some([*forks.tests], seeded), _COVERING_LIMIT_S)
        listed, tried = stored(room), 0
        for mutant in [*listed]:
            if not mutant.gone and (mutant.test not in forks.tests or not forks.first_failure([mutant.test], mutant)):
                mutant.test = _killer(forks, mutant, covering) or mutant.test
        for mutant in _drawn(room, covering, seeded):
            if sum(1 for one in listed if not one.gone) >= count:
                break
            known = any((one.function, one.old, one.new) == (mutant.function, mutant.old, mutant.new) for one in listed)
            if not known and (killer := _killer(forks, mutant, covering)):
                listed.append(msgspec.structs.replace(mutant, test=killer))
                _store(room, listed)
            tried += not known
        _store(room, listed)
        print(f"{room}: {len(listed)} mutants, {tried} drawn", flush=True)

    run(work, paths)


def _some(ids: list[str], seeded: random.Random) -> list[str]:
    """Return a few of each parametrized test, files in a drawn order: time may end before the tests do."""
    files: dict[str, list[str]] = defaultdict(list)
    count: Counter[str] = Counter()
    for one in ids:
        count[one.partition("[")[0]] += 1
        if count[one.partition("[")[0]] <= _PER_TEST:
            files[one.partition("::")[0]].append(one)
    return [one for name in seeded.sample(sorted(files), len(files)) for one in files[name]]


def _room(path: Path) -> str:
    return "client" if path.parts[0] == "client" else path.parts[1] if len(path.parts) > 2 else _NOUNS


def _drawn(room: str, covering: dict[Key, list[str]], seeded: random.Random) -> Iterator[Mutant]:
    """Yield mutants of the room's functions that tests run: one of each function, then a second, and so on."""
    homes = [place for place in places() if _room(place.source.path) == room and place.key in covering]
    choices = [mutants(place) for place in seeded.sample(homes, len(homes))]
    choices = [seeded.sample(choice, len(choice)) for choice in choices]
    for at in range(max(map(len, choices), default=0)):
        yield from (choice[at] for choice in choices if at < len(choice))


def _killer(forks: Forks, mutant: Mutant, covering: dict[Key, list[str]]) -> str:
    """Return a test that fails with the mutant, and alone with it, and not without it; "" if none is found."""
    place = find(mutant)
    tests = covering.get(place.key, [])[:_TRIED_TESTS] if place is not None else []
    found = forks.first_failure(tests, mutant, _TRIED_LIMIT_S) if tests else ""
    alone = found and forks.first_failure([found], mutant, _TRIED_LIMIT_S)
    return found if found and alone and forks.first_failure([found]) == "" else ""


def note_gone(reason: str, room: str, pattern: str) -> None:
    """Note the reason with each mutant of a room whose place is not found."""
    listed = stored(room)
    for one in listed:
        if not one.gone and fnmatch.fnmatch(one.function, pattern) and find(one) is None:
            one.gone = reason
    _store(room, listed)


def main() -> int:
    """Run a command; the exit status is 1 if a mutant lives, or is gone without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("command", choices=["check", "draw", "gone"])
    parser.add_argument("names", nargs="*", help="rooms, all if there is none; for gone, the reason first")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tests", nargs="+", help="where killing tests are looked for; tests/unit/<room>")
    parser.add_argument("--function", default="*", help="with gone: only functions of this pattern")
    chosen = parser.parse_args()
    if chosen.command == "gone":
        for room in chosen.names[1:]:
            note_gone(chosen.names[0], room, chosen.function)
        return 0
    names = chosen.names or rooms()
    if len(names) > 1:  # one process collects the tests of one room
        command = [sys.executable, "-m", "tests.mutants", chosen.command]
        count = ["--count", str(chosen.count)]  # last: argparse takes no name behind an option
        return max(subprocess.run([*command, name, *count], cwd=ROOT, check=False).returncode for name in names)
    if chosen.command == "draw":
        draw(names[0], chosen.count, chosen.tests or [f"tests/unit/{names[0]}"])
        return 0
    complaints = check(names[0])
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
