"""Mutants: what is changed, where it is found again, and that the stored ones die."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from tests.mutants.__main__ import rooms, stored
from tests.mutants.mutations import Mutant, changed, find, functions, mutants
from tests.tidy.tree import ROOT, Source

_TEXT = """
class Counter:
    def add(self, number, limit):
        if number < limit:
            self.count = number
            self.note(number, limit)
        return self.count + 1
"""


def test_each_kind_of_change_is_drawn() -> None:
    """Comparisons, conditions, arguments, statements, operators and numbers change, each known by its text."""
    source = Source(Path("counter.py"), _TEXT, ast.parse(_TEXT))
    (place,) = functions(source, source.tree)
    assert {(one.function, one.old, one.new) for one in mutants(place)} == {
        ("Counter.add", "number < limit", "number <= limit"),
        ("Counter.add", "number < limit", "not number < limit"),
        ("Counter.add", "self.count = number", "pass"),
        ("Counter.add", "self.note(number, limit)", "pass"),
        ("Counter.add", "self.note(number, limit)", "self.note(limit, number)"),
        ("Counter.add", "self.count + 1", "self.count - 1"),
        ("Counter.add", "self.count + 1", "self.count + 2"),
    }


def test_only_the_named_place_changes() -> None:
    """The code of a mutant does what its new text says, and else what the function does."""
    text = "def low(number, limit):\n    other = limit\n    return number < other\n"
    source = Source(Path("low.py"), text, ast.parse(text))
    (place,) = functions(source, source.tree)
    code = changed(Mutant(function="low", old="number < other", new="number <= other"), place, "low.py")
    low = FunctionType(code, {})
    assert [low(1, 2), low(2, 2), low(3, 2)] == [True, True, False]


def test_a_mutant_is_found_where_its_function_has_moved() -> None:
    """The function's last name, or a text that the product has once, leads to a place; what is nowhere is not found."""
    listed = next(one for room in rooms() for one in stored(room) if len(one.old) > 30 and find(one) is not None)
    place = find(listed)
    assert place is not None
    last = place.name.rpartition(".")[2]
    assert find(Mutant(function=f"Elsewhere.{last}", old=listed.old, new=listed.new)) is not None
    assert find(Mutant(function=place.name, old="nowhere(to, be, found)", new="pass")) is None


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("room", rooms())
def test_stored_mutants_die(room: str) -> None:
    """Each stored mutant of a room makes its test fail, or its place is gone for a reason that the list gives."""
    command = [sys.executable, "-m", "tests.mutants", "check", room]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
