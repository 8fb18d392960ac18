"""The reference and the documentation site: made from the code, complete, and every page can be found."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import yaml

from tests.tidy import api_page
from tests.tidy.cli_page import PAGE, page
from tests.tidy.tree import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_API = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)


def test_the_page_of_commands_is_as_the_commands_are() -> None:
    """Renew it with ``python -m tests.tidy.cli_page``."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_tables_of_arguments_are_as_the_docstrings_are() -> None:
    """Renew them with ``python -m tests.tidy.api_page``."""
    text = api_page.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") > 5
    assert text == api_page.page()


def test_the_api_page_has_every_public_name() -> None:
    """What ``feedd_client`` exports is on the page, errors all together, and what is on the page exists."""
    shown = _API.findall((ROOT / "docs/reference/api.md").read_text(encoding="utf-8"))
    package = ROOT / "client" / "feedd_client"
    exported = _exported(package / "__init__.py")
    errors = _classes(package / "errors.py")
    assert "feedd_client.errors" in shown
    names = {name.removeprefix("feedd_client.") for name in shown} - {"errors"}
    assert exported - errors - {"__version__"} <= names
    for name in names - exported:
        module, _, member = name.rpartition(".")
        assert member in (package / f"{module}.py").read_text(encoding="utf-8"), name


def _exported(path: Path) -> set[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(path)


def _classes(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """A page without a place there is not found; decisions have one page that lists them.

    The first page of the site is README.md, which mkdocs calls index.md.
    """
    site = yaml.safe_load((ROOT / ".mkdocs.yml").read_text(encoding="utf-8"))
    named = list(_leaves(site["nav"]))
    pages = {str(path.relative_to("docs")) for path in tracked() if path.parts[0] == "docs" and path.suffix == ".md"}
    own = {name for name in named if not name.startswith("repository/")} - {"index.md"}
    assert len(named) == len(set(named))
    decisions = {name for name in pages if name.startswith("dev/decisions/0")}
    assert own == pages - decisions
    listed = (ROOT / "docs/dev/decisions/README.md").read_text(encoding="utf-8")
    assert all(f"({name.rpartition('/')[2]})" in listed for name in decisions)
    for name in set(named) - own - {"index.md"}:
        assert (ROOT / name.removeprefix("repository/")).is_file(), name


def _leaves(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _leaves(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from _leaves(value)
