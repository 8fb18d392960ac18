from __future__ import annotations

from feedd import errors
from feedd.errors import FeeddError, Internal, NotFound
from feedd.serve.grpc_status import CODES, as_feedd_error


def _kinds() -> set[str]:
    found: set[str] = set()
    waiting: list[type[FeeddError]] = [errors.FeeddError]
    while waiting:
        one = waiting.pop()
        found.add(one.kind)
        waiting += one.__subclasses__()
    return found


def test_every_kind_has_a_code_and_no_code_is_for_nothing() -> None:
    """The table of codes and the tree of errors name the same kinds."""
    assert set(CODES) == _kinds()


def test_our_own_errors_pass_as_they_are() -> None:
    """Nothing is lost of an error raised on purpose, alone or as the only one of a task group."""
    error = NotFound("expected a key, got none", object="s3://b/k")
    assert as_feedd_error(error, "reading") is error
    assert as_feedd_error(ExceptionGroup("group", [error]), "reading") is error


def test_anything_else_is_internal() -> None:
    """A defect is said by its type and what was being done, not by its text."""
    error = as_feedd_error(ValueError("a secret"), "packing")
    assert isinstance(error, Internal)
    assert "ValueError" in error.message
    assert "packing" in error.message
    assert "secret" not in str(error)
