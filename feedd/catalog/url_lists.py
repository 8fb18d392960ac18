"""Lists in one URL: the URLs it stands for, taken apart, and what is there of them."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.catalog.braces import Allowance, expand, split
from feedd.catalog.manifest import Names
from feedd.catalog.urls import Location, parse_url
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import ObjectRef


@dataclass(frozen=True, slots=True)
class UrlList:
    """A URL, and those it stands for.

    Attributes:
        itself: as it is written; None: it can be no URL, but for its braces.
        locations: what it stands for; only itself where it has no braces.
        asked: those of them, by number, that may be objects by their names.
        names: store and key of those.
    """

    itself: Location | None
    locations: tuple[Location, ...]
    asked: tuple[int, ...] = ()
    names: Names = field(default_factory=Names)


def lists_of(urls: Sequence[str], allowance: Allowance | None = None) -> list[UrlList]:
    """Take URLs apart; takes microseconds for each that one stands for.

    Args:
        urls: they.
        allowance: of the request they are of; None: they are all of it.

    Raises:
        BadRequest, Unsupported: see ``expand`` and ``parse_url``.
    """
    found: list[UrlList] = []
    left = allowance or Allowance()
    for url in itertools.chain.from_iterable(map(split, urls)):
        expanded = expand(url, left)
        if expanded == [url]:
            location = parse_url(url)
            found.append(UrlList(location, (location,)))
            continue
        itself = None
        with contextlib.suppress(BadRequest):  # braces in the name of a bucket
            itself = parse_url(url)
        locations = tuple(map(parse_url, expanded))
        asked = [at for at, one in enumerate(locations) if one.key[-1:] not in {"", "/"} and not one.manifest]
        names = Names((locations[at].root, locations[at].key) for at in asked)
        found.append(UrlList(itself, locations, tuple(asked), names))
    return found


def runs_of(urls: UrlList, heads: Sequence[ObjectRef | None]) -> list[tuple[Location, list[ObjectRef]]]:
    """Return the locations of a list in order, neighbours that are objects of one store as one.

    Args:
        urls: the list.
        heads: what is there of ``asked``; None: no object, so it may be a prefix.

    Returns:
        Each with the objects it begins; none: it is to be listed.
    """
    known = dict(zip(urls.asked, heads, strict=True))
    found: list[tuple[Location, list[ObjectRef]]] = []
    for at, location in enumerate(urls.locations):
        ref = known.get(at)
        if ref is None:
            found.append((location, []))
        elif found and found[-1][1] and found[-1][1][-1].root == ref.root:
            found[-1][1].append(ref)
        else:
            found.append((location, [ref]))
    return found
