"""The sizes of the house, which may shrink and not grow; see ``python -m tests.tidy.house``."""

from __future__ import annotations

from tests.tidy.house import repeated_names, walk


def test_no_module_name_stands_twice() -> None:
    """A reader who looks for a module by its name finds one."""
    assert repeated_names() == []


def test_a_batch_runs_through_few_files() -> None:
    """Who reads what a batch or an open does need not read the house: a bound on the files that run."""
    files = {name: len(trace.files) for name, trace in walk().items()}
    bounds = {"open, cold": 155, "first batch": 85, "warm batch": 72, "open again": 92}
    assert {name: count for name, count in files.items() if count > bounds[name]} == {}
    assert files["warm batch"] > 20  # else nothing was traced
