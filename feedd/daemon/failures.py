"""One error out of a group: task groups collect, people read one line."""

from __future__ import annotations

from feedd.errors import FeeddError


def single(error: BaseException) -> BaseException:
    """Return the error to tell: the first one feedd raised on purpose, else the only one, else the group itself."""
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
