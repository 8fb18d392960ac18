"""Blocking work goes to pools that have a name and a bound."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.tidy.tree import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXECUTORS = {"run_in_executor", "set_default_executor", "to_thread"}
_RESOLVERS = {"getaddrinfo", "getnameinfo"}
# Where nothing else runs yet, or nothing else ever does.
_ALONE = {"feedd/serve/listen.py", "feedd/cli/check.py"}


def _calls() -> Iterator[tuple[str, int, str, str]]:
    for source in sources():
        path = str(source.path)
        if path.startswith("feedd/"):
            for node in source.nodes:
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    yield path, node.lineno, ast.unparse(node.func.value), node.func.attr


def test_nothing_uses_the_default_executor() -> None:
    """The daemon's work goes to named pools: what one of them waits for stops nothing else."""
    assert not [call for call in _calls() if call[-1] in _EXECUTORS]


def test_hosts_are_looked_up_in_the_pool_for_that() -> None:
    """A resolver that does not answer holds up nobody but who waits for an address."""
    assert not [call for call in _calls() if call[-1] in _RESOLVERS and call[0] not in _ALONE]
