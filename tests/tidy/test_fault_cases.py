"""The fault matrix is whole: every numbered case is a test of its own."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.tidy.tree import sources

CASES = range(1, 55)
_NAME = re.compile(r"test_case_(\d\d)_\w+")


def _cases() -> dict[int, list[str]]:
    """Name the tests of each case."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for source in sources():
        if source.path.parts[:2] != ("tests", "fault"):
            continue
        for node in source.functions():
            match = _NAME.fullmatch(node.name)
            if match is not None:
                found[int(match[1])].append(f"{source.path}::{node.name}")
    return found


def test_every_fault_case_has_its_test() -> None:
    """Cases 1 to 54 of the fault matrix each have at least one test under tests/fault, named by its number."""
    found = _cases()
    missing = [f"{number:02d}" for number in CASES if not found[number]]
    assert not missing, f"no test_case_NN_ for {', '.join(missing)}"


def test_no_fault_case_is_unknown() -> None:
    """A number beyond the matrix is a slip of the pen."""
    unknown = [name for number, names in _cases().items() if number not in CASES for name in names]
    assert not unknown
