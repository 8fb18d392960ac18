"""What must agree with what: floors, stubs, wrappers, options, metrics."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from feedd import metrics
from feedd.config import load, options
from feedd.config.option_list import UNSET
from feedd.metrics import TABLE
from feedd.protocols import ObjectStore
from tests.tidy.tree import ROOT, sources, tracked

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.config import Option

CONFIG_EXAMPLE = ROOT / "deploy" / "feedd.toml"
METRICS_PAGE = ROOT / "docs" / "operate" / "metrics.md"


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_floors_hold() -> None:
    """Rooms import lower floors only, and the walls between them stand."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache", "--no-logo"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


def test_stubs_are_current() -> None:
    """Both sides' stubs are what feedd.proto gives now, with the pinned compiler."""
    generate = _load("proto/generate.py")
    assert [str(path.relative_to(ROOT)) for path in generate.stale()] == []


def test_store_wrappers_delegate_everything() -> None:
    """Every class that wraps an ObjectStore has all its methods and calls the inner store's in each."""
    wrappers: list[str] = []
    members = [name for name in vars(ObjectStore) if not name.startswith("_")]
    for source in sources():
        if source.path.parts[:2] != ("feedd", "fetch"):
            continue
        module = importlib.import_module(".".join(source.path.with_suffix("").parts).removesuffix(".__init__"))
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ != module.__name__ or name.startswith("_"):
                continue
            first = list(inspect.signature(kind).parameters.values())[:1]
            if not first or str(first[0].annotation) != "ObjectStore":
                continue
            wrappers.append(name)
            inner = f"self._{first[0].name}."
            for member in members:
                assert member in vars(kind), f"{name} lacks {member}"
                defined = inspect.getattr_static(kind, member)
                if isinstance(defined, property):
                    assert defined.fget is not None
                    defined = defined.fget
                code = inspect.getsource(defined)
                assert inner + member in code, f"{name}.{member} does not call the inner store"
            assert "__repr__" in vars(kind), f"{name} does not show what it wraps"
    assert len(wrappers) >= 3, wrappers


# ---------------------------------------------------------------- options


def _example() -> str:
    return CONFIG_EXAMPLE.read_text(encoding="utf-8")


def _uncommented() -> str:
    """Return the example with every commented-out setting switched on."""
    return re.sub(r"^#(?! |$)", "", _example(), flags=re.MULTILINE)


def test_example_as_it_stands_is_the_default() -> None:
    """The example file changes nothing: it can be installed as it is."""
    plain = load({}, {})
    shipped = load({}, {}, CONFIG_EXAMPLE)
    assert shipped.config == plain.config


@pytest.mark.parametrize("option", list(options()), ids=lambda option: option.name)
def test_every_option_is_in_the_example(option: Option) -> None:
    """Each option stands in the example under its table, with its description above and its default as value."""
    at: object = tomllib.loads(_uncommented())
    for part in option.path:
        assert isinstance(at, dict)
        assert part in at, f"{option.name} is missing"
        at = at[part]
    assert option.description in re.sub(r"\n# ", " ", _example())
    if option.default:
        if isinstance(at, list):
            at = ", ".join(map(str, at)) or UNSET
        assert (str(at).lower() if isinstance(at, bool) else str(at)) == option.default


def test_example_has_nothing_else() -> None:
    """Every setting of the example is an option."""
    known = {option.path for option in options()}

    def leaves(tree: dict[str, object], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        for key, value in tree.items():
            found |= leaves(value, (*above, key)) if isinstance(value, dict) else {(*above, key)}
        return found

    assert leaves(tomllib.loads(_uncommented())) <= known


# ---------------------------------------------------------------- metrics


def _metric_names() -> dict[str, str]:
    return {name: value.name for name, value in vars(metrics).items() if isinstance(value, metrics.Metric)}


@functools.cache
def _constants_used() -> set[str]:
    """All names in the code of the rooms that record; what they only import is none."""
    readers = {"feedd/metrics.py", "feedd/observe/status.py", "feedd/daemon/life.py"}
    rooms = [s for s in sources() if s.path.parts[0] == "feedd" and str(s.path) not in readers]
    nodes = [node for source in rooms for node in source.nodes]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def test_every_metric_is_recorded_somewhere() -> None:
    """Each row of the table is used by a room that is not the table, the recorder or the status page."""
    unused = sorted(_metric_names().keys() - _constants_used())
    assert not unused, f"recorded nowhere: {', '.join(unused)}"


@functools.cache
def _told_by_tests() -> set[str]:
    """Constants and names of metrics that a test of some behaviour asks for; comments and docstrings are none."""
    beside = {("tests", "tidy"), ("tests", "bench"), ("tests", "fakes")}  # and what records any metric alike
    names = {value: key for key, value in _metric_names().items()}
    found: set[str] = set()
    for source in sources():
        parts = source.path.parts
        if parts[0] != "tests" or parts[:2] in beside or parts[:3] == ("tests", "unit", "observe"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {constant for name, constant in names.items() if node.value.startswith(name)}
    return found


def test_every_metric_is_asked_for_by_a_test() -> None:
    """What operators see is asserted where it is made: a metric nobody looks at may count anything, or nothing."""
    unasked = sorted(_metric_names().keys() - _told_by_tests())
    assert not unasked, f"asserted by no test of a behaviour: {', '.join(unasked)}"


def test_every_metric_is_documented() -> None:
    """The table of metrics in docs/operate/metrics.md is the one the code gives, row by row."""
    text = METRICS_PAGE.read_text(encoding="utf-8")
    rows = [
        f"| `{m.name}` | {m.kind.value} | {m.unit or '-'} | {', '.join(m.labels) or '-'} | {m.help} |" for m in TABLE
    ]
    assert "\n".join(rows) in text, "docs/operate/metrics.md: replace the rows of the table by:\n" + "\n".join(rows)


def test_nothing_measures_outside_the_table() -> None:
    """No file but the table makes metrics of its own."""
    found = [
        str(source.path)
        for source in sources()
        if source.is_product and re.search(r"[^.\w]Metric\(", source.text) and source.path.name != "metrics.py"
    ]
    assert found == []
    assert tracked()
