"""Finalizers run in any thread at any moment, also where that thread holds a lock: they only hand over."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.tidy.tree import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

# Take no lock, or are of the interpreter: what a finalizer may call. SimpleQueue.put is made for that.
HARMLESS = {
    *("hasattr", "getattr", "len", "is_finalizing", "getpid", "append", "appendleft", "pop", "popleft", "put", "clear"),
    *("close", "callback", "_close_fd"),  # of a descriptor; what CUDA registered
}
# Called from finalizers of the client; each is looked into, as far as names lead.
FOLLOWED = {"_begin_to_close", "_leave", "leave", "let_go", "abandon", "forget", "_post_left", "stop", "interrupt"}
# What waits, or may: ``acquire`` only where it is told not to.
WAITS = {"acquire", "join", "wait", "wait_for", "result", "synchronize", "get", "recv", "sleep", "notify", "notify_all"}
# To be mended where it stands: a loader that is dropped ends its copy thread.
KNOWN = {("client/feedd_client/lane.py", "DevicePass")}


def _finalizers() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    for source in sources():
        if not source.is_product:
            continue
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "__del__":
                        yield str(source.path), node.name, one


def _by_name() -> dict[str, list[tuple[str, ast.FunctionDef]]]:
    found: dict[str, list[tuple[str, ast.FunctionDef]]] = {}
    for source in sources():
        if source.path.parts[0] == "client" and not any(path == str(source.path) for path, _ in KNOWN):
            for node in source.nodes:
                if isinstance(node, ast.FunctionDef):
                    found.setdefault(node.name, []).append((str(source.path), node))
    return found


def _name(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _only_assigns(node: ast.With) -> bool:
    """Whether nothing is made or called under a lock: no finalizer runs there, and nobody holds it for long."""
    made = (ast.Call, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.ListComp, ast.Await, ast.JoinedStr, ast.Subscript)
    return all(
        isinstance(one, ast.Assign) and not any(isinstance(part, made) for part in ast.walk(one)) for one in node.body
    )


def _waits(function: ast.FunctionDef) -> list[str]:
    """What in a function takes a lock or waits."""
    found = [
        ast.unparse(item.context_expr)
        for node in ast.walk(function)
        if isinstance(node, ast.With) and not _only_assigns(node)
        for item in node.items
        if not (isinstance(item.context_expr, ast.Call) and _name(item.context_expr) == "suppress")
    ]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _name(node) in WAITS:
            tries = any(word.arg == "blocking" and ast.unparse(word.value) == "False" for word in node.keywords)
            if not tries:
                found.append(ast.unparse(node))
    return found


def test_finalizers_hand_over_and_wait_for_nobody() -> None:
    """No ``__del__``, nor what it calls, takes a lock: the thread it interrupts may hold that very lock."""
    by_name = _by_name()
    found: list[str] = []
    seen_count = 0
    for path, owner, finalizer in _finalizers():
        if (path, owner) in KNOWN:
            continue
        seen_count += 1
        queue, seen = [(path, finalizer)], set()
        while queue:
            where, function = queue.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            found += [f"{where}: {function.name} of {owner}.__del__: {what}" for what in _waits(function)]
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and (name := _name(node)) not in HARMLESS:
                    if name in FOLLOWED:
                        queue += by_name.get(name, [])
                    elif function.name == "__del__":
                        found.append(f"{where}: {owner}.__del__ calls {name}, which is not known to be harmless")
    assert not found
    assert seen_count >= 3, "finalizers are looked for in the wrong place"


def test_locks_that_finalizers_take_guard_assignments() -> None:
    """A dataset that is dropped takes its Runtime's lock: nothing is made under it, so nothing is dropped there."""
    locked = [
        node
        for source in sources()
        if source.path.name == "runtime.py" and source.path.parts[0] == "client"
        for node in source.nodes
        if isinstance(node, ast.With)
    ]
    assert len(locked) >= 4
    assert all(_only_assigns(node) for node in locked)


def test_no_finalizer_is_registered_elsewhere() -> None:
    """Weak references call back; ``weakref.finalize`` would call what this test cannot look into."""
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        if source.is_product
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == "finalize" and ast.unparse(node.value) == "weakref"
    ]
    assert not found


def test_callbacks_of_weak_references_only_take_note() -> None:
    """What a weak reference calls back is ``append`` of a deque, or ``pop`` of a dict: one operation, no lock."""
    known = {"self._take_note", "_forgetter(self._live)"}
    found = [
        f"{source.path}:{node.lineno}: {ast.unparse(node.args[1])}"
        for source in sources()
        if source.is_product
        for node in source.nodes
        if isinstance(node, ast.Call) and _name(node) in {"ref", "_Watch", "WeakMethod"} and len(node.args) > 1
        and ast.unparse(node.args[1]) not in known
    ]  # fmt: skip
    assert not found
