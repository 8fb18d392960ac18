"""The client's own tensors say where they lie: a trainer may have set torch's default device to its GPU."""

from __future__ import annotations

import ast
from typing import Final

from tests.tidy.tree import sources

FACTORIES: Final = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "zeros"}


def test_tensors_of_the_client_name_their_device() -> None:
    """Every call of torch.empty and its like in the client has a device."""
    calls = [
        (source.path, node)
        for source in sources()
        if source.path.parts[:2] == ("client", "feedd_client")
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr in FACTORIES) == ("torch", True)
    ]
    assert calls
    bare = [
        f"{path}:{node.lineno}" for path, node in calls if not any(keyword.arg == "device" for keyword in node.keywords)
    ]
    assert not bare
