"""What one URL names, while it is listed: pages in, shards and packs out."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import structlog

from feedd.plan.beside import is_beside
from feedd.plan.objects.gathering import Gathering, Grouped

if TYPE_CHECKING:
    from feedd.source.urls import Location
    from feedd.values import ObjectRef

_log = structlog.get_logger(__name__)


class Taking:
    """Takes the objects of one URL.

    Args:
        location: the URL.
        shards: objects are shards, as where the URL names their format.

    Attributes:
        beside: objects that tell of samples and hold none.
        count: objects taken.
    """

    def __init__(self, location: Location, *, shards: bool = False) -> None:
        self._url = location.url
        self._exact = location.key
        self._named = shards or bool(location.format)
        self.beside: dict[ObjectRef, None] = {}
        self.count = 0
        self._gatherings: list[Gathering] = []
        self._base = ""
        self.within(location.key)

    def within(self, prefix: str) -> None:
        """Have keys told relative to the folder of that prefix."""
        self._base = prefix[: prefix.rfind("/") + 1]

    def take(self, page: list[ObjectRef]) -> None:
        """Take objects of the URL's own store, all under its prefix."""
        if not self._gatherings:
            self._gatherings.append(Gathering(self._base))
        self._take(page)

    def take_named(self, page: list[ObjectRef]) -> None:
        """Take objects of one store that a manifest names, in its order."""
        keys = [ref.key for ref in page]
        common = os.path.commonprefix([min(keys), max(keys)])  # noqa: RUF071 - of a prefix too, the folder follows
        self._gatherings.append(Gathering(common[: common.rfind("/") + 1]))
        self._take(page)

    def grouped(self) -> list[Grouped]:
        """Return the shards and packs; takes long where there are millions."""
        found = [gathering.grouped() for gathering in self._gatherings]
        for one in found:
            if one.left_out:
                _log.info("objects are left out", url=self._url, objects=one.left_out, first=one.example)
        return found

    def _take(self, page: list[ObjectRef]) -> None:
        self.count += len(page)
        beside = [ref for ref in page if is_beside(ref.key) and ref.key != self._exact]
        self.beside.update(dict.fromkeys(beside))
        self._gatherings[-1].add([ref for ref in page if ref not in self.beside] if beside else page, named=self._named)
