"""Lists in one URL: the URLs that it stands for, and the objects that exist for them."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd.catalog.braces import Allowance, expand, split
from feedd.catalog.manifest import Names
from feedd.catalog.urls import Location, parse_url
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import ObjectRef

_WEB: Final = ("https://", "http://")


@dataclass(frozen=True, slots=True)
class UrlList:
    """A URL, and the URLs it stands for.

    Attributes:
        itself: the URL as it is written; None: it is no valid URL without expanding its braces.
        locations: the URLs it stands for; only itself if it has no braces.
        requested: indices of locations whose names may be objects rather than prefixes.
        names: store and key of these locations.
    """

    itself: Location | None
    locations: tuple[Location, ...]
    requested: tuple[int, ...] = ()
    names: Names = field(default_factory=Names)


def lists_of(urls: Sequence[str], allowance: Allowance | None = None) -> list[UrlList]:
    """Expand URLs; takes microseconds for each URL that they stand for.

    Args:
        urls: the URLs.
        allowance: allowance of their request; None: these URLs are the whole request.

    Raises:
        BadRequest, Unsupported: see ``expand`` and ``parse_url``.
    """
    found: list[UrlList] = []
    left = allowance or Allowance()
    objects: list[Location] = []  # neighbours on web servers, whose heads are requested together
    for url in itertools.chain.from_iterable(map(split, urls)):
        expanded = expand(url, left)
        location = parse_url(url) if expanded == [url] else None
        if location is not None and location.root.startswith(_WEB) and not (location.manifest or location.frozen):
            objects.append(location)
            continue
        found += _objects(objects)
        objects.clear()
        if location is not None:
            found.append(UrlList(location, (location,)))
            continue
        itself = None
        with contextlib.suppress(BadRequest):  # a bucket's name with braces is not valid
            itself = parse_url(url)
        locations = tuple(map(parse_url, expanded))
        requested = [
            at for at, one in enumerate(locations) if one.key[-1:] not in {"", "/"} and not (one.manifest or one.frozen)
        ]
        names = Names((locations[at].root, locations[at].key) for at in requested)
        found.append(UrlList(itself, locations, tuple(requested), names))
    return found + _objects(objects)


def _objects(locations: Sequence[Location]) -> list[UrlList]:
    """Return URLs of objects as one list."""
    if not locations:
        return []
    names = Names((location.root, location.key) for location in locations)
    return [UrlList(None, tuple(locations), tuple(range(len(locations))), names)]


def runs_of(urls: UrlList, heads: Sequence[ObjectRef | None]) -> list[tuple[Location, list[ObjectRef]]]:
    """Return the locations of a list in order, with neighbouring objects of one store joined.

    Args:
        urls: the list.
        heads: the object for each of ``requested``; None: there is none, so the name may be a prefix.

    Returns:
        Pairs of a location and the objects that start there; an empty list: the location must be listed.
    """
    known = dict(zip(urls.requested, heads, strict=True))
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
