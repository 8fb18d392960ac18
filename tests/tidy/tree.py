"""The tree as the tidy tests see it: tracked files, and Python sources taken apart once."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Files git knows or would add, relative to the root; outside a checkout (a released tarball) all files."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode()
        names = [Path(name) for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        top = ("feedd", "client", "proto", "tests", "deploy", "docs")
        names = [path.relative_to(ROOT) for folder in top for path in (ROOT / folder).rglob("*") if path.is_file()]
        names += [path.relative_to(ROOT) for path in ROOT.iterdir() if path.is_file()]
        names = [name for name in names if "__pycache__" not in name.parts]
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


@functools.cache
def committed() -> tuple[Path, ...]:
    """Files git knows: what somebody has lying about in his checkout is his own business."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return tracked()
    return tuple(Path(name) for name in listed.split("\0") if name)


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def is_product(self) -> bool:
        """Shipped code, not tests or tools."""
        return self.path.parts[0] in {"feedd", "client"}

    @property
    def line_count(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree, as ``ast.walk`` gives it: walking takes longer than most tests need."""
        return [*ast.walk(self.tree)]

    @functools.cached_property
    def _definitions(self) -> list[Function | ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, Function | ast.ClassDef)]

    def functions(self) -> Iterator[Function]:
        """All functions and methods."""
        return (node for node in self._definitions if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes."""
        return (node for node in self._definitions if isinstance(node, ast.ClassDef))


@functools.cache
def sources() -> tuple[Source, ...]:
    """Hand-written Python files."""
    found: list[Source] = []
    gc.disable()  # two thirds of the time: the trees are large, and all of them stay
    try:
        for path in tracked():
            if path.suffix == ".py" and not path.name.endswith(GENERATED):
                text = (ROOT / path).read_text(encoding="utf-8")
                found.append(Source(path, text, ast.parse(text)))
        gc.freeze()
    finally:
        gc.enable()
    return tuple(found)


def size(node: Function | ast.ClassDef) -> int:
    """Lines of a function or class, its docstring not counted: explaining more must not cost."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines
