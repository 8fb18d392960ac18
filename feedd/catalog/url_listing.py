"""The objects of one URL while they are listed: pages in, shards and packs out."""

from __future__ import annotations

import itertools
import os.path
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from feedd.catalog.ignored_objects import IgnoredKeys
from feedd.catalog.object_grouper import Grouped, ObjectGrouper
from feedd.catalog.table_roots import refuse_root
from feedd.dataset.pack_names import marks_in, unfinished
from feedd.dataset.passed_over import PassedOver
from feedd.dataset.sidecars import is_sidecar
from feedd.dataset.splits import with_one_split
from feedd.errors import Unsupported
from feedd.values import ArchivedRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.catalog.frozen import Frozen
    from feedd.catalog.urls import Location
    from feedd.dataset.packs import Packs
    from feedd.values import ObjectRef

_FILES = "files"  # the format of packs


@dataclass(frozen=True, slots=True)
class Resolved:
    """The objects that URLs name.

    Attributes:
        refs: the data.
        sidecar_refs: sidecars among the objects: they tell of samples and hold none (``dataset.index_file``,
            ``dataset.sidecars``).
        packs: contents of the packs among the refs; packs can be fetched only while these objects are held.
        named: formats named in URLs, by index into ``refs``.
        passed_over: objects that are not data.
        counts: samples of the objects that frozen manifests list, by index into ``refs``.
        formats: formats that frozen manifests name, by index into ``refs``.
        frozen: the versions of these manifests.
        only: the manifest, if it lists all of the data.
    """

    refs: Sequence[ObjectRef]
    sidecar_refs: tuple[ObjectRef, ...]
    packs: tuple[Packs, ...] = ()
    named: Mapping[int, str] = field(default_factory=dict)
    passed_over: PassedOver = field(default_factory=PassedOver)
    counts: Mapping[int, int] = field(default_factory=dict)
    formats: Mapping[int, str] = field(default_factory=dict)
    frozen: tuple[ObjectRef, ...] = ()
    only: Frozen | None = None

    @classmethod
    def of(cls, frozen: Frozen) -> Self:
        """Return a dataset that one frozen manifest lists."""
        named = dict.fromkeys(range(len(frozen.refs)), frozen.format) if frozen.format else {}
        versions, facts = (frozen.ref,), (frozen.counts, frozen.formats)
        return cls(frozen.refs, (), (), named, frozen.passed_over, *facts, versions, frozen)


class UrlListing:
    """Collects the objects of one URL.

    Args:
        location: the URL.
        shards: treat all objects as shards, as if the URL named their format.

    Attributes:
        location: the URL.
        sidecar_refs: sidecars, which tell of samples and hold none.
        archived: objects that may have to be restored before they can be read.
        count: number of collected objects.
        frozen: the manifest that lists the objects; None: a store lists them.
    """

    def __init__(self, location: Location, *, shards: bool = False) -> None:
        self.location = location
        self._exact = location.key
        self._format = location.format not in {"", _FILES}
        self._named = shards or self._format
        self.sidecar_refs: dict[ObjectRef, None] = {}
        self.archived: list[ObjectRef] = []
        self.count = 0
        self.frozen: Frozen | None = None
        self._gatherings: list[ObjectGrouper] = []
        self._listed: list[ObjectRef] = []
        self._packs: Packs | None = None
        self._is_listed = False  # False for lists and manifests, whose objects the user named explicitly
        self._marks: list[str] = []  # plans and manifests of feedd pack
        self._base = ""
        self.within(location.key)

    def within(self, prefix: str) -> None:
        """Make keys relative to the folder of this prefix."""
        self._base, self._prefix = prefix[: prefix.rfind("/") + 1], prefix
        self._ignored = IgnoredKeys(prefix, named=self._format)

    def take(self, page: list[ObjectRef]) -> None:
        """Add objects of the URL's own store, all under its prefix.

        Raises:
            Unsupported: the folder is a table, or a dataset of several splits (see ``refuse_root``).
        """
        self._is_listed = True
        refuse_root(page, self._prefix, self._ignored)
        self._marks += marks_in(ref.key for ref in page)
        if not self._gatherings:
            self._gatherings.append(ObjectGrouper(self._base, shards=self._named, ignored=self._ignored))
        self._take(page)

    def take_named(self, page: list[ObjectRef]) -> None:
        """Add objects of one store that a manifest names, in its order; none of them is ignored."""
        ends = [min(ref.key for ref in page), max(ref.key for ref in page)]
        common = os.path.commonprefix(ends)  # noqa: RUF071 - of a prefix too, the folder follows
        self._gatherings.append(ObjectGrouper(common[: common.rfind("/") + 1], shards=self._named))
        self._take(page)

    def take_all_named(self, refs: list[ObjectRef]) -> None:
        """Add objects of any stores that a manifest names, in its order, and empty the list.

        Each takes 1 to 2 microseconds. Freeing millions together would block the interpreter for other threads.
        """
        for _, page in itertools.groupby(refs, lambda ref: ref.root):
            self.take_named(list(page))
        while refs:
            refs.pop()

    def take_listed(self, refs: list[ObjectRef]) -> None:
        """Add objects of one store that URLs name, in their order; they are grouped later, and none is ignored."""
        self._listed = refs

    def note_archived(self, refs: Sequence[ObjectRef | None]) -> None:
        """Note which of some objects are archived."""
        self.archived += [ref.plain for ref in refs if isinstance(ref, ArchivedRef)]

    def take_packs(self, packs: Packs) -> None:
        """Take the packs of an augmented manifest, which is the whole URL."""
        self._packs = packs

    @property
    def passed_over(self) -> PassedOver:
        """The objects that a frozen manifest left out."""
        return PassedOver() if self.frozen is None else self.frozen.passed_over

    def grouped(self) -> list[Grouped]:
        """Return the shards and packs; takes long for millions of objects.

        Raises:
            Unsupported: ``feedd pack`` has not finished writing the shards.
        """
        if plan := unfinished(self._marks):
            raise Unsupported(
                "expected a complete pack, got one without its manifest: feedd pack has not written all shards",
                object=f"{self.location.root}{'' if plan.startswith('/') else '/'}{plan}",
                hint="wait until feedd pack ends; if it was stopped, run it again",
                stage="source",
            )
        if self._packs is not None:
            return [Grouped(self._packs.refs, self._packs)]
        if self.frozen is not None and not self.count:
            for page in self.frozen.pages():
                self.take(page)
        if self._listed:
            self.take_named(self._listed)
            self._listed = []
        found = [gathering.grouped() for gathering in self._gatherings]
        if not self._is_listed or self.frozen is not None:
            return found
        return [replace(one, reasons={**one.reasons, **with_one_split(one.refs, self._base)}) for one in found]

    def _take(self, page: list[ObjectRef]) -> None:
        self.count += len(page)
        if ArchivedRef in set(map(type, page)):
            self.note_archived(page)
            page = [ref.plain if isinstance(ref, ArchivedRef) else ref for ref in page]
        sidecar_refs = [ref for ref in page if is_sidecar(ref.key) and ref.key != self._exact]
        self.sidecar_refs.update(dict.fromkeys(sidecar_refs))
        self._gatherings[-1].add([ref for ref in page if ref not in self.sidecar_refs] if sidecar_refs else page)
