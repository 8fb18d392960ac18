"""Changes of one expression or statement of a function: how they are drawn, found again, and made.

A mutant is known by the qualified name of its function, by what it changes as ``ast.unparse`` writes that, and by what
stands there then. Its file is not part of it, because code moves.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tests.tidy.tree import Function, Source, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

Key = tuple[str, str, int]
"""Of a function: file, qualified name, first line."""
_PAIRS: Final = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)),
)
_FLIPS: Final[dict[type[ast.AST], Any]] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_SHORT: Final = 6  # characters: a shorter text says too little to be found again, and what is around it is taken
_TELLING: Final = 20  # characters that tell a place without the name of its function
_UNSWAPPED: Final = {"isinstance", "issubclass", "min", "max", "zip", "getattr", "cast"}
_SAYING: Final = {"log", "logger", "_log", "_LOG", "LOG", "warnings"}  # a line of the log is no behaviour that counts


class Mutant(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a list.

    Attributes:
        function: qualified name of a function of a module or class.
        old: an expression or statement that occurs once in the function.
        new: what stands there instead.
        test: id of a test that fails then.
        gone: why the product has no such place any more; empty while it has one.
    """

    function: str
    old: str
    new: str
    test: str = ""
    gone: str = ""


class Place(NamedTuple):
    """A function of the product."""

    source: Source
    name: str
    node: Function

    @property
    def key(self) -> Key:
        """What the function's code object says of itself."""
        return str(self.source.path), self.name, min(one.lineno for one in (self.node, *self.node.decorator_list))

    def nodes(self, text: str) -> list[ast.AST]:
        """Return the nodes with this text; a statement stands for the expression that it consists of."""
        found = [node for node in ast.walk(self.node) if isinstance(node, ast.expr | ast.stmt) and _text(node) == text]
        inner = [node.value for node in found if isinstance(node, ast.Expr)]
        return [node for node in found if node not in inner]


@functools.cache
def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def functions(source: Source, within: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[Place]:
    """Yield the functions of a module or class and of its classes, but none that is in a function."""
    for node in within.body:
        if isinstance(node, Function):
            yield Place(source, prefix + node.name, node)
        elif isinstance(node, ast.ClassDef):
            yield from functions(source, node, f"{prefix}{node.name}.")


@functools.cache
def places() -> tuple[Place, ...]:
    """Functions and methods of the product."""
    return tuple(place for one in sources() if one.is_product for place in functions(one, one.tree))


def find(mutant: Mutant) -> Place | None:
    """Return where a mutant is today: in the function of its name, else in one of its last name, else in any."""
    last = mutant.function.rpartition(".")[2]
    named = [place for place in places() if place.name.rpartition(".")[2] == last]
    named.sort(key=lambda place: place.name != mutant.function)
    found = _with(named, mutant.old)
    if not found and len(mutant.old) >= _TELLING:
        anywhere = _with(places(), mutant.old)
        found = anywhere if len(anywhere) == 1 else []
    return found[0] if found else None


def _with(homes: Iterable[Place], text: str) -> list[Place]:
    return [place for place in homes if text in _text(place.node) and len(place.nodes(text)) == 1]


def changed(mutant: Mutant, place: Place, file_name: str) -> CodeType:
    """Return the code of the function with the change."""
    tree = ast.parse(place.source.text)
    (own,) = [one for one in functions(place.source, tree) if one.key == place.key]
    (node,) = own.nodes(mutant.old)
    (new,) = ast.parse(mutant.new).body
    replacement = new.value if isinstance(node, ast.expr) and isinstance(new, ast.Expr) else new
    _replace(own.node, node, ast.copy_location(replacement, node))
    left = [compile(ast.fix_missing_locations(tree), file_name, "exec")]
    while (left[0].co_qualname, left[0].co_firstlineno) != place.key[1:]:
        left += [one for one in left.pop(0).co_consts if hasattr(one, "co_qualname")]
    return left[0]


def _replace(within: ast.AST, node: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(within):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, new)
            elif isinstance(value, list):
                value[:] = [new if one is node else one for one in value]


def mutants(place: Place) -> list[Mutant]:
    """Return all mutants of a function that this module knows how to make."""
    parents = {child: parent for parent in ast.walk(place.node) for child in ast.iter_child_nodes(parent)}
    found: list[Mutant] = []
    for node, new in (change for part in place.node.body for one in ast.walk(part) for change in _changes(one)):
        context = _context(place, node, parents)
        if context is None:
            continue
        holder = ast.Module([context], []) if isinstance(context, ast.stmt) else ast.Expression(context)
        _replace(holder, node, new)
        text = ast.unparse(holder)
        _replace(holder, new, node)
        if text != _text(context):
            found.append(Mutant(function=place.name, old=_text(context), new=text))
    return found


def _context(place: Place, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.expr | ast.stmt | None:
    """Return the smallest part around a node that the function has once; None if there is none without a block."""
    while isinstance(node, ast.expr | ast.stmt) and not hasattr(node, "body"):
        text, parent = _text(node), parents[node]
        if len(text) >= _SHORT and "\n" not in text and len(place.nodes(text)) == 1:
            return parent if isinstance(parent, ast.Expr) else node
        node = parent
    return None


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what may stand in place of a node, or of its condition."""
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in _FLIPS:
            yield node, ast.Compare(node.left, [_FLIPS[type(op)](), *rest], node.comparators)
        case ast.BoolOp(op=op):
            yield node, ast.BoolOp(_FLIPS[type(op)](), node.values)
        case ast.BinOp(op=op) if type(op) in _FLIPS:
            yield node, ast.BinOp(node.left, _FLIPS[type(op)](), node.right)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)
        case ast.Call(args=[first, second, *rest]) if _text(node.func) not in _UNSWAPPED:
            yield node, ast.Call(node.func, [second, first, *rest], node.keywords)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call() | ast.Await()) if not _says(node):
            yield node, ast.Pass()
        case ast.Raise() | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()


def _says(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) and one.id in _SAYING for one in ast.walk(node))
