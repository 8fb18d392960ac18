"""Names of modules, classes, functions and attributes are words of the field, not words of our own."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tests.tidy.tree import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy.tree import Source

_PARTS = """
ahead asked awaited begun beside crew crowd drawn endless foresight hire horizon hosted hurry kept landed lend lender
lent maker outlook overseer portions remedy shelf standing stray strays teller tempo told
"""
PARTS: Final = frozenset(_PARTS.split())
"""No name contains these words."""
_WHOLE = """
absent alarm arriving at_once boxed claim coming course cut even filling form forms gathering gear held made mind mover
narrow pace place places room several silence stored taking tally together trouble tunnel turn walk way
"""
WHOLE: Final = frozenset(_WHOLE.split())
"""No name is one of these words alone."""
ALLOWED: Final = {
    ("feedd/recipe/pack_params.py", "beside"): "a key of recipes in their stored form, which fingerprints cover",
    ("feedd/serve/feed_service.py", "places"): "a field of the wire",
}


def names(source: Source) -> Iterator[str]:
    """Yield the names of classes, functions and attributes that a module defines."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            )
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_banned(name: str) -> bool:
    """Return whether ``name`` is, or contains, a banned word."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower()
    return words in WHOLE or not PARTS.isdisjoint(words.split("_"))


def test_names_are_the_fields_words() -> None:
    """See the table of renames; a name that must stay is in ``ALLOWED``, with its reason."""
    found = {
        (source.path.as_posix(), name)
        for source in sources()
        if source.is_product
        for name in (source.path.stem, *names(source))
        if is_banned(name)
    }
    assert not found - ALLOWED.keys()
    assert not ALLOWED.keys() - found  # an exception that is no longer needed


def test_what_is_banned() -> None:
    """Whole words, in either spelling."""
    assert all(map(is_banned, ("Shelf", "_told", "told_by", "made", "HostedSession", "EpochAhead")))
    assert not any(map(is_banned, ("converted", "format", "places_max", "line", "made_shards", "Formats")))
