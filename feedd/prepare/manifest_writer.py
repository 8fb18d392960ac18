"""Writes a counted dataset as a frozen manifest: a new version beside the earlier ones, which stay as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd import __version__
from feedd.access import FILE_ROOT
from feedd.catalog.frozen import next_name, read_frozen, versions
from feedd.dataset.frozen_manifest import Head, Manifest, Notice, render
from feedd.dataset.index_file import MANIFEST_FOLDER
from feedd.dataset.pack_layout import is_pack
from feedd.dataset.packs import packed_tag
from feedd.errors import BadRequest, NotFound, ObjectChanged, StoreUnavailable, Unsupported
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.formats.format_registry import format_for
from feedd.tables.registry import conversion_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.catalog.frozen import Frozen
    from feedd.catalog.sources import Sources
    from feedd.catalog.urls import Location
    from feedd.dataset.listing import Listing
    from feedd.values import ObjectRef

_TRIES: Final = 20
_NAMES_MAX: Final = 4096
_FORMATS_MAX: Final = (1 << 16) - 1
_NUMBER: Final = re.compile(r"\d+")
_PART_OF: Final = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, slots=True)
class Written:
    """A version of a manifest.

    Attributes:
        url: URL of the version.
        objects: number of its objects.
        size_bytes: its size.
        new: whether it was written now; otherwise the newest version already holds the same.
    """

    url: str
    objects: int
    size_bytes: int
    new: bool


async def freeze(sources: Sources, location: Location, folder: str, listing: Listing) -> Written:
    """Write a dataset as the next version of its folder's manifest, unless the newest version holds the same.

    Args:
        sources: reads and writes versions.
        location: the indexed URL.
        folder: key of its folder.
        listing: the dataset, with the counts of all shards.

    Raises:
        BadRequest, Unsupported: the dataset cannot be frozen.
        NotFound, PermissionDenied, StoreUnavailable: the store's answer.
    """
    manifest = await CPU.run(manifest_of, listing, folder, location.format)
    data = await CPU.run(render, manifest)
    store = sources.store(location.root)
    if location.root == FILE_ROOT:
        await LOCAL_FILES.run(Path(folder + MANIFEST_FOLDER).mkdir, exist_ok=True)
    start = folder if location.root == FILE_ROOT else f"/{folder}"
    for _ in range(_TRIES):
        try:
            known = await versions(store, folder)
        except NotFound:
            known = []
        if known and await _same(sources, location, known[-1], manifest):
            return Written(known[-1].url, len(manifest.sizes), known[-1].size_bytes, new=False)
        url = f"{location.root}{start}{MANIFEST_FOLDER}{next_name(known)}"
        try:
            await sources.put(url, data, "")
        except ObjectChanged:
            continue  # another run has written this version, or an answer was lost
        return Written(url, len(manifest.sizes), len(data), new=True)
    message = f"expected to write the next version of the manifest, got a newer version {_TRIES} times"
    raise StoreUnavailable(message, object=f"{location.root}{start}{MANIFEST_FOLDER}")


@dataclass(frozen=True, slots=True)
class Difference:
    """A version of a manifest, compared with the objects of its folder now.

    Attributes:
        url: URL of the version.
        added: objects that the version does not list.
        removed: objects that the version lists and that are gone.
        changed: objects with another size or ETag than the version lists.
        example: the key of one of them; empty: there is none.
    """

    url: str
    added: int
    removed: int
    changed: int
    example: str = ""

    @property
    def total(self) -> int:
        """The number of objects that differ."""
        return self.added + self.removed + self.changed


async def difference(sources: Sources, location: Location, folder: str, listing: Listing) -> Difference | None:
    """Compare the newest version of a folder's manifest with the folder; None: there is no version.

    Raises:
        BadRequest: the object is no manifest, damaged, or of another version.
        PermissionDenied, StoreUnavailable: the store's answer.
    """
    plain = replace(location, key=folder, format="")
    try:
        frozen = await read_frozen(sources.texts, sources.store(location.root), plain)
    except NotFound:
        return None
    return await CPU.run(_compared, frozen, listing)


def _compared(frozen: Frozen, listing: Listing) -> Difference:
    then = {ref.key: (ref.size_bytes, ref.etag) for ref in frozen.refs}
    now = {ref.key: (ref.size_bytes, ref.etag) for ref, _, _ in _objects(listing, frozen.format, counted=False)}
    added, removed = now.keys() - then.keys(), then.keys() - now.keys()
    changed = {key for key in now.keys() & then.keys() if now[key] != then[key]}
    example = min(changed or removed or added, default="")
    return Difference(frozen.ref.url, len(added), len(removed), len(changed), example)


async def _same(sources: Sources, location: Location, ref: ObjectRef, manifest: Manifest) -> bool:
    """Return whether a version holds the same objects and facts."""
    try:
        frozen = await read_frozen(sources.texts, sources.store(ref.root), replace(location, key=ref.key, format=""))
    except BadRequest:
        return False  # damaged, or of another version of feedd
    return await CPU.run(_equal, frozen.manifest, manifest)


def _equal(one: Manifest, other: Manifest) -> bool:
    texts = (one.keys, one.tags) == (other.keys, other.tags)
    columns = ("sizes", "counts", "names", "formats")
    facts = ("format", "packed", "names", "formats", "left_out")
    return (
        texts
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
        and all(getattr(one.head, name) == getattr(other.head, name) for name in facts)
        and list(one.key_ends) == list(other.key_ends)
        and list(one.tag_ends) == list(other.tag_ends)
    )


def manifest_of(listing: Listing, folder: str, named: str) -> Manifest:
    """Return the columns of a dataset; takes some ten microseconds for each object.

    Args:
        listing: the dataset.
        folder: key of its folder.
        named: the format that its URL names; empty: none.

    Raises:
        BadRequest: a shard has no count.
        Unsupported: a key is too long, or shards have too many formats.
    """
    rows = _Rows(folder)
    packed = bool(listing.packs)
    objects = _objects(listing, named)
    for ref, count, form in sorted(objects, key=lambda row: row[0].key) if packed else objects:
        rows.add(ref, count, form)
    left_out = tuple(
        Notice(kind.value, amount.count, amount.size_bytes, amount.examples)
        for kind, amount in sorted(listing.passed_over.reasons.items(), key=lambda one: one[0].value)
    )
    return rows.manifest(named, left_out, packed=packed)


def _objects(listing: Listing, named: str, *, counted: bool = True) -> Iterator[tuple[ObjectRef, int, str]]:
    """Yield the objects of a dataset, with their samples and the formats that sidecars name."""
    packs = {ref: (one, number) for one in listing.packs for number, ref in enumerate(one.refs)}
    for shard, ref in enumerate(listing.refs):
        if is_pack(ref):
            one, number = packs[ref]
            for at in one.span(number):
                yield one.members.ref(at), -1, ""
            continue
        count, form = listing.counts.get(shard, -1), listing.format_of(shard)
        if count < 0 and counted:
            raise BadRequest("expected the samples of every shard, got none", object=ref.url)
        yield ref, count, "" if form == named else form


class _Rows:
    """Collects the objects of a manifest."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._keys, self._tags = bytearray(), bytearray()
        self._key_ends, self._tag_ends = [0], [0]
        self._sizes: list[int] = []
        self._counts: list[int] = []
        self._names: dict[str, int] = {}
        self._formats = {"": 0}
        self._name_of: list[int] = []
        self._format_of: list[int] = []

    def add(self, ref: ObjectRef, count: int, form: str) -> None:
        """Add the next object."""
        assert ref.key.startswith(self._folder), f"expected a key below {self._folder}, got {ref.key}"
        self._keys += ref.key[len(self._folder) :].encode("utf-8", "surrogatepass")
        self._key_ends.append(len(self._keys))
        self._tags += packed_tag(ref.etag)
        self._tag_ends.append(len(self._tags))
        self._sizes.append(ref.size_bytes)
        self._counts.append(count)
        if len(self._names) <= _NAMES_MAX:
            self._name_of.append(self._names.setdefault(representative_name(ref.key), len(self._names)))
        self._format_of.append(self._formats.setdefault(form, len(self._formats)))
        if len(self._formats) > _FORMATS_MAX:
            hint = "leave out --manifest: the folder is then listed"
            raise Unsupported(f"expected at most {_FORMATS_MAX} formats of shards, got more", object=ref.url, hint=hint)

    def manifest(self, named: str, left_out: tuple[Notice, ...], *, packed: bool) -> Manifest:
        """Return the columns."""
        count, few = len(self._sizes), len(self._names) <= _NAMES_MAX
        head = Head(
            objects=count,
            key_bytes=len(self._keys),
            tag_bytes=len(self._tags),
            format=named,
            packed=packed,
            names=tuple(self._names) if few else (),
            formats=tuple(self._formats),
            writer=__version__,
            left_out=left_out,
        )
        return Manifest(
            head,
            bytes(self._keys),
            self._key_ends,
            np.array(self._sizes, np.int64),
            bytes(self._tags),
            self._tag_ends,
            np.array(self._counts, np.int64),
            np.array(self._name_of if few else [0] * count, np.uint16),
            np.array(self._format_of, np.uint16),
        )


def representative_name(key: str) -> str:
    """Return a name from which the same format and conversion follow as from the name of an object.

    Numbers differ between the shards of a dataset, and mostly tell nothing. So few names stand for all.
    """
    name = key.rpartition("/")[2].lower()
    stem, dot, ending = name.partition(".")
    ending = _PART_OF.sub("-0-of-0", ending)
    parts = ["0" if part.isdecimal() else part for part in ending.split(".")]
    for short in (f"x{dot}{'.'.join(parts)}", f"{_NUMBER.sub('0', stem)}{dot}{'.'.join(parts)}"):
        if _facts(short) == _facts(name):
            return short
    return name


def _facts(name: str) -> tuple[object, str]:
    try:
        return conversion_for(name), format_for(name)
    except Unsupported:
        return conversion_for(name), "refused"
