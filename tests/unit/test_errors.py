"""The error tree: every class is on the page, has a kind of its own, and renders on one line."""

from __future__ import annotations

import pickle

import pytest

from feedd import errors
from feedd.errors import FeeddError, StoreUnavailable, Throttled


def _tree(root: type[FeeddError]) -> list[type[FeeddError]]:
    return [
        root,
        *(leaf for child in root.__subclasses__() for leaf in _tree(child) if leaf.__module__ == root.__module__),
    ]


ALL = _tree(FeeddError)


def test_kinds_are_unique() -> None:
    """The kind names the class on the wire, so no two share one."""
    kinds = [error.__dict__.get("kind") for error in ALL]
    assert None not in kinds
    assert len(set(kinds)) == len(ALL)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_on_the_page(error: type[FeeddError]) -> None:
    """The tree at the top of the module shows every class."""
    assert f"``{error.__name__}``" in (errors.__doc__ or "")


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_errors_render_on_one_line(error: type[FeeddError]) -> None:
    """Message, object and hint appear in that order; fields that are empty leave no trace."""
    full = error("expected 3, got 2", object="s3://b/k", hint="try again", stage="source")
    assert str(full) == "expected 3, got 2 [s3://b/k] - try again"
    assert str(error("expected 3, got 2")) == "expected 3, got 2"
    assert (full.stage, error("x").stage) == ("source", "")


def test_retryable_is_inherited_by_kinds_of_transport_trouble() -> None:
    """What can be cured by trying again says so, and nothing else does."""
    retryable = {error.__name__ for error in ALL if error.retryable}
    assert retryable == {
        "StoreUnavailable",
        "Throttled",
        "BadResponse",
        "WorkerLost",
        "ResourceExhausted",
        "Draining",
    }


def test_throttled_carries_the_servers_wish() -> None:
    """How long the server asked us to wait travels with the error."""
    error = Throttled("slow down", retry_after_s=2.5)
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after_s == 2.5
    assert Throttled("slow down").retry_after_s is None


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_errors_cross_processes(error: type[FeeddError]) -> None:
    """An error can be pickled by tools around us and comes back as the same class with the same fields."""
    again = pickle.loads(pickle.dumps(error("expected 3", object="k", hint="h", stage="s")))
    assert type(again) is error
    assert (again.message, again.object, again.hint, again.stage) == ("expected 3", "k", "h", "s")
