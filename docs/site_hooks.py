"""Adapts pages for the documentation site. They are written for a forge, where links refer to repository files.

- The first page of the site is README.md.
- A file of the repository that a page links to is shown below ``repository/``.
- Pages below ``dev/`` are for those who change feedd: the site's search leaves them out.
- ``<!-- api: NAME -->`` becomes the signature and the docstring of that name. The table after it is left out.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
_BESIDE: Final = "repository"
_DEVELOPERS: Final = "dev/"
_FIRST: Final = "README.md"
_PAGES: Final = ("feedd/ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
_LINK: Final = re.compile(r"(?P<text>\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_API: Final = re.compile(
    r"^<!-- api: (?P<name>[\w.]+) -->$(\n\n<!-- table: .*?<!-- end of table -->$)?", re.MULTILINE | re.DOTALL
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the first page, and all files of the repository that pages link to."""
    todo = [_FIRST, *_PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(todo)
    while todo:
        path = todo.pop()
        if not path.startswith("docs/"):
            files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            found = {target for target in _targets(path) if target not in seen and (ROOT / target).is_file()}
            todo += sorted(found)
            seen |= found
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs passes all
    """Point links to the site's pages, and insert the API."""
    if page.file.src_uri.startswith(_DEVELOPERS):
        page.meta["search"] = {"exclude": True}
    path = _path(page.file.src_uri)
    pieces, at = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_linked(markdown[at : fence.start()], path), fence[0]]
        at = fence.end()
    return "".join([*pieces, _linked(markdown[at:], path)])


def _linked(text: str, path: str) -> str:
    def moved(match: re.Match[str]) -> str:
        target = _target(path, match["target"])
        if target is None or not (ROOT / target).is_file():
            return match[0]
        link = posixpath.relpath(_place(target), posixpath.dirname(_place(path)) or ".")
        return f"{match['text']}{link}{match['anchor'] or ''})"

    return _API.sub(r"::: \g<name>", _LINK.sub(moved, text))


def _targets(path: str) -> Iterator[str]:
    text = _FENCE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target = _target(path, match["target"])
        if target is not None:
            yield target


def _target(path: str, link: str) -> str | None:
    """Return the repository file that a link on a page names, or None for other links."""
    if ":" in link or link.startswith("/"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return None if target.startswith("..") else target


def _place(path: str) -> str:
    """Return the path on the site of a repository file."""
    if path == _FIRST:
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{_BESIDE}/{path}"


def _path(place: str) -> str:
    """Return the repository file of a path on the site."""
    if place == "index.md":
        return _FIRST
    beside = place.removeprefix(f"{_BESIDE}/")
    return beside if beside != place else f"docs/{place}"
