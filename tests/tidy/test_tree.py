"""The tree: what lies where, what is in no file, and what every test says first."""

from __future__ import annotations

import ast
import re

from tests.tidy.tree import ROOT, Function, committed, sources, tracked

TOP = {
    "README.md",
    "pyproject.toml",
    "Makefile",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "constraints.txt",
    "proto",
    "feedd",
    "client",
    "tests",
    "deploy",
    "docs",
}
# Paths of a developer's machine, spelt in two parts so that this file does not hold them.
MACHINE_PATHS = re.compile("|".join(["/" + "work/", "/" + r"root/(?!\.)", "/" + r"home/[a-z]+/", "/" + "Users/"]))
NAMES_OF_NOTHING = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
TEXT = {".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".proto", ".service", ".cfg", ".sh", ""}


def test_top_level_is_as_planned() -> None:
    """A newcomer sees the names of the plan and dotfiles, nothing else."""
    found = {path.parts[0] for path in committed()}
    assert {name for name in found if not name.startswith(".")} - TOP == set()
    assert {"README.md", "pyproject.toml", "Makefile", "LICENSE", "constraints.txt"} <= found


def test_no_file_is_named_after_nothing() -> None:
    """A file's name says what is in it."""
    assert not [str(path) for path in tracked() if path.name in NAMES_OF_NOTHING]


def test_no_path_of_a_machine_is_committed() -> None:
    """No text names a directory of somebody's machine."""
    found: list[str] = []
    for path in tracked():
        if path.suffix in TEXT:
            text = (ROOT / path).read_text(encoding="utf-8")
            found += [f"{path}: {match.group()}" for match in MACHINE_PATHS.finditer(text)]
    assert not found


def _reason(call: ast.Call) -> str:
    """Return what a skip says, up to what it fills in."""
    said = next((word.value for word in call.keywords if word.arg == "reason"), call.args[0] if call.args else None)
    if isinstance(said, ast.JoinedStr):
        said = said.values[0]
    return said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""


def test_nothing_is_skipped_for_good() -> None:
    """A test is left out only where the machine lacks what it needs; what can run nowhere is not collected."""
    found: list[str] = []
    for source in sources():
        if source.path.parts[0] != "tests":
            continue
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = ast.unparse(node.func)
            refused = name in {"pytest.mark.skip", "pytest.mark.xfail", "pytest.xfail", "pytest.importorskip"}
            skips = name in {"pytest.skip", "pytest.mark.skipif"}
            if refused or (skips and not _reason(node).startswith("needs ")):
                found.append(f"{source.path}:{node.lineno}")
    assert not found, f'expected a skip that says "needs ..." of the machine: {", ".join(found)}'


def test_every_test_says_what_must_hold() -> None:
    """Each test opens with one sentence."""
    found: list[str] = []
    for source in sources():
        if source.path.parts[0] != "tests":
            continue
        for node in source.functions():
            if not node.name.startswith("test_"):
                continue
            said = ast.get_docstring(node) or ""
            if not said or not said.split("\n\n")[0].rstrip().endswith("."):
                found.append(f"{source.path}:{node.lineno} {node.name}")
    assert not found


def test_exceptions_to_the_rules_give_a_reason() -> None:
    """Every noqa and every type: ignore names its rule and says why."""
    found: list[str] = []
    bare = re.compile(r"#\s*(?:noqa(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*)?|type:\s*ignore(?:\[[a-z-, ]+\])?)\s*$")
    for source in sources():
        for number, line in enumerate(source.text.splitlines(), start=1):
            if bare.search(line):
                found.append(f"{source.path}:{number} {line.strip()}")
    assert not found


def test_no_task_is_started_outside_a_group() -> None:
    """Background work belongs to a TaskGroup: asyncio's own create_task and ensure_future appear nowhere."""
    ungrouped = {"asyncio.create_task", "asyncio.ensure_future"}
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        if source.is_product
        for node in source.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ungrouped
    ]
    assert not found


def test_seams_stay_small() -> None:
    """No seam has more than six methods."""
    (page,) = [source for source in sources() if str(source.path) == "feedd/protocols.py"]
    for node in page.classes():
        methods = [item for item in node.body if isinstance(item, Function) and not item.name.startswith("__")]
        assert len(methods) <= 6, node.name
