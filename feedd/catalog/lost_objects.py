"""Missing objects of packs, whose samples are bad; and the objects' own names for bad samples of packs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.catalog.manifest import head_all
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_layout import HEAD_BYTES, LineObject, has_lines, head_bytes, is_pack, parse
from feedd.errors import CacheUnavailable, FeeddError, NotFound
from feedd.flow.lru import WeightedLru
from feedd.flow.pools import CACHE_DISK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.sources import Sources
    from feedd.dataset.pack_layout import Table
    from feedd.dataset.packs import Members, Packs
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.shard_index import ShardIndex
    from feedd.tables.cache import ConvertingCache
    from feedd.values import ObjectRef, ShardFile

_KNOWN_MAX: Final = 1 << 16  # packs
_RENEW_S: Final = 60.0
_ASKED_MAX: Final = 64  # missing objects that an open looks up
_ASKED_AT_ONCE: Final = 16
_ASK_S: Final = 2.0  # how long an open waits for the answers

Reasons = dict[int, dict[int, dict[str, str]]]
"""shard number -> sample number -> extension of a missing object -> reason."""


class _Version(NamedTuple):
    """One fill of a cache entry; a later fill may be complete."""

    ref: ObjectRef
    inode: int
    changed_ns: int


class _Lost(NamedTuple):
    """A missing object.

    Attributes:
        number: its number in the pack.
        sample: the sample it belongs to.
        extension: its field.
        reason: text for people.
        vanished: it existed when the objects were listed.
    """

    number: int
    sample: int
    extension: str
    reason: str
    vanished: bool


class _Lacking(NamedTuple):
    numbers: tuple[int, ...]
    requested_s: float  # when an open last looked them up


class LostObjects:
    """Missing objects of packs in the cache; each pack is read once.

    Attributes:
        renew_s: minimum seconds between two look-ups of a pack's missing objects.
    """

    def __init__(self) -> None:
        self.renew_s = _RENEW_S
        self._known: WeightedLru[_Version, tuple[_Lost, ...]] = WeightedLru(_KNOWN_MAX)
        self._lacking: dict[ObjectRef, _Lacking] = {}

    async def renew(self, listed: Sequence[Packs], sources: Sources, cache: ConvertingCache) -> None:
        """Drop packs of a listing from the cache if their missing objects exist again, so that they are refetched.

        A pack's missing objects are looked up at most once in ``renew_s``, for a few packs at a time. A pack stays if
        its objects are still missing, or if the store does not answer soon.
        """
        asked: list[tuple[ObjectRef, ObjectRef]] = []
        for ref, members, first in self._due(listed):
            numbers = self._lacking[ref].numbers
            self._lacking[ref] = _Lacking(numbers, _now_s())
            asked += [(ref, members.ref(first + number)) for number in numbers]

        async def head(root: str, key: str) -> ObjectRef | None:
            try:
                return await sources.store(root).head(key)
            except NotFound:
                return None

        found: Sequence[ObjectRef | None] = ()
        with contextlib.suppress(FeeddError, TimeoutError):
            async with asyncio.timeout(_ASK_S):
                found = await head_all([(member.root, member.key) for _, member in asked], head, _ASKED_AT_ONCE)
        back = {ref for (ref, member), now in zip(asked, found, strict=False) if now == member}
        for ref in back:
            del self._lacking[ref]
            await cache.renew(ref)

    def _due(self, listed: Sequence[Packs]) -> list[tuple[ObjectRef, Members, int]]:
        """Return packs of the listing to look up, with their members and the number of their first object there."""
        before_s, asked_count = _now_s() - self.renew_s, 0
        found: list[tuple[ObjectRef, Members, int]] = []
        for ref, lacking in self._lacking.items():
            if lacking.requested_s > before_s:
                continue
            for packs in listed:
                number = packs.find(ref)
                if number is not None:
                    found.append((ref, packs.members, packs.span(number).start))
                    asked_count += len(lacking.numbers)
                    break
            if asked_count >= _ASKED_MAX:
                break
        return found

    async def without(
        self, indexes: Sequence[ShardIndex], files: Sequence[ShardFile]
    ) -> tuple[Sequence[ShardIndex], Reasons]:
        """Return the indexes of pinned shards without missing objects, and the reasons.

        Raises:
            CacheUnavailable: a pack cannot be read, or is not a pack.
        """
        reasons: Reasons = {}
        found = indexes
        # files with ``inflight`` hold the samples that were waited for
        packs = {number: file for number, file in enumerate(files) if is_pack(file.ref) and not file.inflight}
        for (number, file), lost in zip(packs.items(), await self._of(list(packs.values())), strict=True):
            if lost:
                vanished = tuple(one.number for one in lost if one.vanished)
                if vanished and file.ref not in self._lacking and len(self._lacking) < _KNOWN_MAX:
                    self._lacking[file.ref] = _Lacking(vanished, -math.inf)
                found = [*found[:number], _without(found[number], lost), *found[number + 1 :]]
                by_sample = reasons.setdefault(number, {})
                for one in lost:
                    by_sample.setdefault(one.sample, {})[one.extension] = one.reason
        return found, reasons

    async def with_object_names(self, failures: Sequence[Failure], files: Sequence[ShardFile]) -> Sequence[Failure]:
        """Return bad samples with those in packs renamed to their objects, which have names of their own.

        Raises:
            CacheUnavailable: a pack cannot be read, or is not a pack.
        """
        packs = {file.ref.url: file for file in files if is_pack(file.ref)}
        if not any(one.url in packs for one in failures):
            return failures
        try:
            return await CACHE_DISK.run(_named, failures, packs)
        except (OSError, ValueError) as error:
            raise CacheUnavailable(f"expected packs, got {error}", object=failures[0].url, stage="decode") from error

    async def _of(self, files: Sequence[ShardFile]) -> list[tuple[_Lost, ...]]:
        versions = [_version(file) for file in files]
        known = [self._known.get(version) for version in versions]
        unknown = [number for number, one in enumerate(known) if one is None]
        if unknown:  # one thread call for all of them, because an epoch's first batches have many
            read = await CACHE_DISK.run(lambda: [_read(files[number]) for number in unknown])
            for number, lost in zip(unknown, read, strict=True):
                self._known.put(versions[number], lost, 1)
                known[number] = lost
        return [one or () for one in known]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _version(file: ShardFile) -> _Version:
    """Return a key for this fill of the entry; takes microseconds, because the file is pinned.

    Raises:
        CacheUnavailable: the file is missing.
    """
    try:
        now = os.fstat(file.fd) if file.fd >= 0 else Path(file.path).stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return _Version(file.ref, now.st_ino, now.st_mtime_ns)


def _unreadable(file: ShardFile, error: Exception) -> CacheUnavailable:
    return CacheUnavailable(f"expected a pack, got {error}", object=file.ref.url, stage="decode")


def bad_rows(
    reasons: Reasons, shard_no: NDArray[np.integer], ordinal: NDArray[np.integer], wanted: frozenset[str]
) -> dict[int, tuple[str, str]]:
    """Return rows that lack an object with a wanted extension: row -> (extension, reason)."""
    if not reasons:
        return {}
    found: dict[int, tuple[str, str]] = {}
    for row, (number, sample) in enumerate(zip(shard_no.tolist(), ordinal.tolist(), strict=True)):
        missing = reasons.get(number, {}).get(sample, {})
        named = next((one for one in missing.items() if one[0] in wanted), None)
        if named is not None:
            found[row] = named
    return found


def _without(index: ShardIndex, lost: Sequence[_Lost]) -> ShardIndex:
    sizes = index.sizes.copy()
    for one in lost:
        if one.extension in index.fields:
            sizes[index.fields.index(one.extension), one.sample] = -1
    return index.with_fields(index.fields, index.starts, sizes, index.encodings, index.reasons)


def _read(file: ShardFile) -> tuple[_Lost, ...]:
    try:
        table = _table(file)
        names = table.names() if table.lost else []
        found = []
        for number in table.lost:
            sample, vanished = int(table.sample[number]), bool(table.sizes[number])
            if has_lines(file.ref):
                one = LineObject.parse(names[number])
                extension, reason = one.attribute.lower(), one.fault or _gone(one.url, vanished=vanished)
            else:
                extension = split_name(names[number])[1]
                reason = _gone(f"{_folder(file, names)}{names[number]}", vanished=True)
            found.append(_Lost(number, sample, extension, reason, vanished))
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    return tuple(found)


def _gone(url: str, *, vanished: bool) -> str:
    when = "when the pack was fetched" if vanished else "when the manifest was read"
    return f"expected the object {url}, got none {when}"


def _named(failures: Sequence[Failure], packs: Mapping[str, ShardFile]) -> list[Failure]:
    tables = {url: _table(packs[url]) for url in {one.url for one in failures} & packs.keys()}
    names = {url: table.names() for url, table in tables.items()}
    found = []
    for one in failures:
        if one.url in tables:
            table, file_names = tables[one.url], names[one.url]
            objects = np.flatnonzero(table.sample == one.ordinal)
            place = objects[table.starts()[objects] == one.offset]  # the failed field's object, if it exists
            if has_lines(packs[one.url].ref):
                found.append(_in_line(one, file_names, [int(at) for at in place if table.sizes[at]]))
                continue
            name = file_names[int(place[0] if len(place) else objects[0])]
            found.append(replace(one, url=_folder(packs[one.url], file_names) + name, ordinal=0, offset=0))
        else:
            found.append(one)
    return found


def _in_line(failure: Failure, names: Sequence[str], place: Sequence[int]) -> Failure:
    """Return a failure in a pack of lines with its manifest, line and attribute; a key there is the line's number.

    Args:
        failure: the failure.
        names: names of the pack's objects.
        place: the failed object, if the field is one; else empty.
    """
    text, line = LineObject.parse(names[0]), int(failure.key)
    told = LineObject.parse(names[place[0]]) if place and place[0] else LineObject(line, failure.field, text.url)
    reason = f"line {line} of {text.url}, attribute {told.attribute!r}: {failure.reason}"
    return replace(failure, url=told.url, reason=reason, ordinal=0 if told.url != text.url else line - 1, offset=0)


def _table(file: ShardFile) -> Table:
    fd = file.fd if file.fd >= 0 else os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = file.ref.size_bytes
        table_bytes = min(head_bytes(os.pread(fd, HEAD_BYTES, file.data_at)), size_bytes)
        return parse(memoryview(os.pread(fd, table_bytes, file.data_at)), size_bytes)
    finally:
        if file.fd < 0:
            os.close(fd)


def _folder(file: ShardFile, names: Sequence[str]) -> str:
    """Return the folder of the pack's names; a pack's URL is its folder, its first object and a count."""
    return file.ref.url.removesuffix(f"{names[0]}+{len(names) - 1}")
