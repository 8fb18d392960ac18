"""Picks one error out of an exception group, for a message of one line."""

from __future__ import annotations

from feedd.errors import FeeddError


def single(error: BaseException) -> BaseException:
    """Return the error to report: the first FeeddError, else the only error, else the group itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves: list[BaseException] = []
    todo: list[BaseException] = [error]
    while todo:
        each = todo.pop(0)
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions
        else:
            leaves.append(each)
    known = [leaf for leaf in leaves if isinstance(leaf, FeeddError)]
    if known:
        return known[0]
    return leaves[0] if len(leaves) == 1 else error
