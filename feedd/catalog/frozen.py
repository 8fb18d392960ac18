"""Frozen manifests: which versions a folder has, and the dataset that one of them lists.

``feedd index --manifest`` writes each version as an object of its own, ``_feedd_manifest/00000001.feedd`` beside the
data. ``frozen+s3://bucket/folder/`` reads the newest version: one LIST of that folder and one GET. The URL of one
version reads this version: a HEAD and a GET. No version is ever changed, so a run can go on with the one it began with.
"""

from __future__ import annotations

import itertools
import re
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.access import EVERYTHING, FILE_ROOT, climbs
from feedd.catalog.url_listing import UrlListing
from feedd.dataset.frozen_manifest import MANIFEST_BYTES_MAX, Manifest, parse
from feedd.dataset.index_file import MANIFEST_FOLDER, is_manifest
from feedd.dataset.listing import Listing
from feedd.dataset.passed_over import PassedOver
from feedd.dataset.ref_columns import ObjectColumns, RefColumns
from feedd.dataset.step_counts import CountColumn
from feedd.errors import BadRequest, NotFound
from feedd.flow.pools import CPU
from feedd.notices import Amount, NoticeKind
from feedd.tables.registry import conversion_of, is_unsaid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.access import Access
    from feedd.catalog.texts import Texts
    from feedd.catalog.urls import Location
    from feedd.conversion import Conversion
    from feedd.protocols import ObjectStore
    from feedd.values import ObjectRef

_VERSION: Final = re.compile(r"(\d{8})\.feedd")
_HINT: Final = "write one with feedd index --manifest, or leave out frozen+ so that the folder is listed"
_PAGE: Final = 1000
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """A version of a manifest, and where its objects lie.

    Attributes:
        ref: the version.
        folder: key of the dataset's folder, with a slash at its end unless it is the bucket itself.
        manifest: its content.
    """

    ref: ObjectRef
    folder: str
    manifest: Manifest

    @property
    def format(self) -> str:
        """The format that the indexed URL named; empty: none."""
        return self.manifest.head.format

    @property
    def refs(self) -> RefColumns:
        """The objects in the order of their listing, without conversions."""
        return RefColumns.of(self._columns, (None,), bytes(len(self.manifest.sizes)))

    @property
    def passed_over(self) -> PassedOver:
        """The objects that the listing left out when it was frozen."""
        known = {kind.value: kind for kind in NoticeKind}
        left_out = [one for one in self.manifest.head.left_out if one.kind in known]
        reasons = {known[one.kind]: Amount(one.count, one.size_bytes, one.examples) for one in left_out}
        return PassedOver(sum(one.count for one in left_out), (), reasons)

    @property
    def counts(self) -> CountColumn:
        """Samples of each object that was counted, by its index."""
        return CountColumn(self.manifest.counts)

    @property
    def formats(self) -> Mapping[int, str]:
        """Formats that sidecars named, by the object's index."""
        texts = self.manifest.head.formats
        numbers = self.manifest.formats
        return {at: texts[numbers[at]] for at in np.flatnonzero(numbers).tolist()}

    def listing(self, listed_s: float) -> Listing | None:
        """Return the dataset without a Python object for each shard; None: it needs the general way."""
        manifest, head = self.manifest, self.manifest.head
        urls = [f"{self.ref.root}/{name}" for name in head.names]
        if head.packed or head.format or not urls or not len(manifest.sizes) or any(map(is_unsaid, urls)):
            return None
        counts = self.counts
        if len(counts) < len(manifest.sizes):
            return None
        found = [conversion_of("", url) for url in urls]
        conversions: list[Conversion | None] = list(dict.fromkeys(found))
        by_name = np.array([conversions.index(conversion) for conversion in found], np.int32)
        if len(conversions) == 1:
            which: Sequence[int] = bytes(len(manifest.sizes))
        elif len(conversions) <= 1 << 8:
            which = by_name.astype(np.uint8)[manifest.names].tobytes()
        else:
            which = array("i", by_name[manifest.names].tobytes())
        listing = Listing.of(RefColumns.of(self._columns, conversions, which), listed_s)
        listing.counts, listing.formats = counts, self.formats
        listing.indexed, listing.counted_by = True, (self.ref.url,)
        listing.passed_over, listing.frozen = self.passed_over, (self.ref,)
        return listing

    def pages(self) -> list[list[ObjectRef]]:
        """Return the objects as pages of a listing."""
        refs = iter(self.refs)
        return list(iter(lambda: list(itertools.islice(refs, _PAGE)), []))

    @property
    def _columns(self) -> ObjectColumns:
        one = self.manifest
        return ObjectColumns(self.ref.root, self.folder, one.keys, one.key_ends, one.sizes, one.tags, one.tag_ends)


async def versions(store: ObjectStore, folder: str) -> list[ObjectRef]:
    """Return the versions of a folder's manifest, the oldest first.

    Args:
        store: the folder's store.
        folder: key of the folder, with a slash at its end unless it is the bucket itself.

    Raises:
        NotFound: there is no such bucket or folder.
        PermissionDenied, StoreUnavailable: the store's answer.
    """
    start = folder + MANIFEST_FOLDER
    pages = [page async for page in store.list(start)]
    return [ref for ref in itertools.chain.from_iterable(pages) if _VERSION.fullmatch(ref.key[len(start) :])]


def next_name(known: Sequence[ObjectRef]) -> str:
    """Return the name of the version after all of these."""
    newest = _VERSION.search(known[-1].key) if known else None
    return f"{int(newest[1]) + 1 if newest else 1:08d}.feedd"


async def read_frozen(
    texts: Texts, store: ObjectStore, location: Location, back: int = 0, access: Access = EVERYTHING
) -> Frozen:
    """Read a version of a manifest with two requests.

    Args:
        texts: bounds the bytes of manifests in memory.
        store: the store of the location.
        location: a folder, or one version.
        back: how many versions before the newest to take, if the location is a folder; at most the oldest.
        access: what the caller may read; every object of the manifest is checked.

    Raises:
        NotFound: the folder has no manifest.
        BadRequest: the object is no manifest, damaged, of another version, or names an object outside of its folder.
        PermissionDenied: the caller may not read an object of the manifest, or the store's answer.
        ObjectChanged, StoreUnavailable: the store's answer.
    """
    if is_manifest(location.key) and not location.key.endswith("/"):
        ref = await store.head(location.key)
    else:
        ref = await _newest(store, location, back)
    if ref.size_bytes > MANIFEST_BYTES_MAX:
        message = f"expected a frozen manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
        raise BadRequest(message, object=ref.url, stage="source")
    try:
        manifest = await texts.parse(ref, parse, store)
    except ValueError as error:
        raise BadRequest(str(error), object=ref.url, hint=_HINT, stage="source") from error
    found = Frozen(ref, ref.key[: ref.key.rindex(MANIFEST_FOLDER)], manifest)
    await CPU.run(_check_keys, found, access)
    if location.format not in {"", found.format}:
        message = f"expected the format {found.format or 'that names tell'} of the manifest, got {location.format}"
        raise BadRequest(message, object=location.url, hint="freeze the folder under this format", stage="source")
    return found


async def _newest(store: ObjectStore, location: Location, back: int) -> ObjectRef:
    folder = location.key if location.key.endswith("/") or not location.key else f"{location.key}/"
    try:
        found = await versions(store, folder)
    except NotFound as error:
        if location.root != FILE_ROOT:  # of a path, the folder of manifests may be what is missing
            raise
        raise _no_manifest(location) from error
    if not found:
        raise _no_manifest(location)
    return found[max(len(found) - 1 - back, 0)]


async def thawed(texts: Texts, store: ObjectStore, location: Location, back: int, access: Access) -> UrlListing:
    """Return the objects that a frozen manifest lists, in the format that the indexed URL named.

    Raises and takes the same as ``read_frozen``.
    """
    frozen = await read_frozen(texts, store, location, back, access)
    folder = replace(location, key=frozen.folder, format=frozen.format)
    found = UrlListing(folder, shards=not frozen.manifest.head.packed)
    found.frozen = frozen
    return found


def _check_keys(frozen: Frozen, access: Access) -> None:
    """Refuse keys that lead out of the folder, and objects that the caller may not read.

    Keys that cannot climb, in a folder that may be read as a whole, are not looked at one by one.
    """
    root = frozen.ref.root
    if climbs(root, "..") and not frozen.manifest.has_plain_keys:  # the keys of some stores never climb
        for names in frozen.refs.names():
            if climbs(root, "/".join(names)):
                name = next(name for name in names if climbs(root, name))
                message = f"expected objects below the manifest's folder, got the key {name[:_SHOWN_CHARS]!r}"
                raise BadRequest(message, object=frozen.ref.url, stage="source")
    if not access.covers(root, frozen.folder):
        access.check_names(((ref.root, ref.key) for ref in frozen.refs), frozen.ref.url)


def _no_manifest(location: Location) -> NotFound:
    return NotFound("expected a frozen manifest, got none", object=location.url, hint=_HINT, stage="source")
