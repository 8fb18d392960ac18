"""Objects of packs by their own names: those that did not come, so that samples are bad; those of bad samples."""

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
from feedd.dataset.pack_layout import HEAD_BYTES, head_bytes, is_pack, parse
from feedd.errors import CacheUnavailable, FeeddError, NotFound
from feedd.flow.lru import WeightedLru
from feedd.flow.pools import CACHE_DISK, CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.sources import Sources
    from feedd.converting.converting_cache import ConvertingCache
    from feedd.dataset.pack_layout import Table
    from feedd.dataset.packs import Members, Packs
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.values import ObjectRef, ShardFile, ShardIndex

_KNOWN_MAX: Final = 1 << 16  # packs
_RENEW_S: Final = 60.0
_ASKED_MAX: Final = 64  # lost objects that an open asks for
_ASKED_AT_ONCE: Final = 16
_ASK_S: Final = 2.0  # that an open waits for the answers

Reasons = dict[int, dict[int, tuple[str, str]]]
"""By the number of the shard and of the sample: the extension of what is lost, and what to say of it."""


class _Version(NamedTuple):
    """One fill of an entry: what is fetched again may come whole."""

    ref: ObjectRef
    inode: int
    changed_ns: int


class _Lost(NamedTuple):
    number: int
    sample: int
    extension: str
    reason: str


class _Lacking(NamedTuple):
    numbers: tuple[int, ...]
    asked_s: float  # when an open asked for them last


class LostObjects:
    """What packs in the cache say that they lack; each is asked once.

    Attributes:
        renew_s: an open of a pack's listing asks for what the pack lacks, at most once in this time.
    """

    def __init__(self) -> None:
        self.renew_s = _RENEW_S
        self._known: WeightedLru[_Version, tuple[_Lost, ...]] = WeightedLru(_KNOWN_MAX)
        self._lacking: dict[ObjectRef, _Lacking] = {}

    async def renew(self, listed: Sequence[Packs], sources: Sources, cache: ConvertingCache) -> None:
        """Drop those packs of a listing from the cache whose lost objects are there again, to be fetched anew.

        A pack's lost objects are asked for once in ``renew_s``, those of few packs at a time. A pack that lacks as much
        as before stays, and so does one whose store does not answer soon.
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
        """Return packs of a listing, with what all of them hold and the number of their first object there."""
        before_s, asked_count = _now_s() - self.renew_s, 0
        found: list[tuple[ObjectRef, Members, int]] = []
        for ref, lacking in self._lacking.items():
            if lacking.asked_s > before_s:
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
        """Return the indexes of pinned shards without what is lost, and why it is.

        Raises:
            CacheUnavailable: a pack cannot be read, or is none.
        """
        reasons: Reasons = {}
        found = indexes
        # what is waited for has come
        packs = {number: file for number, file in enumerate(files) if is_pack(file.ref) and not file.inflight}
        for (number, file), lost in zip(packs.items(), await self._of(list(packs.values())), strict=True):
            if lost:
                if file.ref not in self._lacking and len(self._lacking) < _KNOWN_MAX:
                    self._lacking[file.ref] = _Lacking(tuple(one.number for one in lost), -math.inf)
                found = [*found[:number], _without(found[number], lost), *found[number + 1 :]]
                reasons[number] = {one.sample: (one.extension, one.reason) for one in lost}
        return found, reasons

    async def told(self, failures: Sequence[Failure], files: Sequence[ShardFile]) -> Sequence[Failure]:
        """Return bad samples of pinned shards with those of packs told by their objects, which have names of their own.

        Raises:
            CacheUnavailable: a pack cannot be read, or is none.
        """
        packs = {file.ref.url: file for file in files if is_pack(file.ref)}
        if not any(one.url in packs for one in failures):
            return failures
        try:
            return await CPU.run(_told, failures, packs)
        except (OSError, ValueError) as error:
            raise CacheUnavailable(f"expected packs, got {error}", object=failures[0].url, stage="decode") from error

    async def _of(self, files: Sequence[ShardFile]) -> list[tuple[_Lost, ...]]:
        versions = [_version(file) for file in files]
        known = [self._known.get(version) for version in versions]
        unknown = [number for number, one in enumerate(known) if one is None]
        if unknown:  # a turn through a thread for all of them: an epoch's first batches have many
            read = await CACHE_DISK.run(lambda: [_read(files[number]) for number in unknown])
            for number, lost in zip(unknown, read, strict=True):
                self._known.put(versions[number], lost, 1)
                known[number] = lost
        return [one or () for one in known]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _version(file: ShardFile) -> _Version:
    """Return what tells one fill from the next: microseconds, for the file is pinned and its inode at hand.

    Raises:
        CacheUnavailable: it is gone.
    """
    try:
        now = Path(file.path).stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return _Version(file.ref, now.st_ino, now.st_mtime_ns)


def _unreadable(file: ShardFile, error: Exception) -> CacheUnavailable:
    return CacheUnavailable(f"expected a pack, got {error}", object=file.ref.url, stage="decode")


def bad_rows(
    reasons: Reasons, shard_no: NDArray[np.integer], ordinal: NDArray[np.integer], wanted: frozenset[str]
) -> dict[int, tuple[str, str]]:
    """Return the rows that lack an object of one of the extensions that are wanted: that, and what to say of it."""
    if not reasons:
        return {}
    found: Mapping[int, tuple[str, str] | None] = {
        row: reasons.get(number, {}).get(sample)
        for row, (number, sample) in enumerate(zip(shard_no.tolist(), ordinal.tolist(), strict=True))
    }
    return {row: told for row, told in found.items() if told is not None and told[0] in wanted}


def _without(index: ShardIndex, lost: Sequence[_Lost]) -> ShardIndex:
    sizes = index.sizes.copy()
    for one in lost:
        if one.extension in index.fields:
            sizes[index.fields.index(one.extension), one.sample] = -1
    return replace(index, sizes=sizes)


def _read(file: ShardFile) -> tuple[_Lost, ...]:
    try:
        table = _table(file)
        names = table.names() if table.lost else []
        extensions = {number: split_name(names[number])[1] for number in table.lost}
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    return tuple(
        _Lost(
            number,
            int(table.sample[number]),
            extension,
            f"expected the object {_folder(file, names)}{names[number]}, got none when the pack was fetched",
        )
        for number, extension in extensions.items()
    )


def _told(failures: Sequence[Failure], packs: Mapping[str, ShardFile]) -> list[Failure]:
    tables = {url: _table(packs[url]) for url in {one.url for one in failures} & packs.keys()}
    names = {url: table.names() for url, table in tables.items()}
    found = []
    for one in failures:
        if one.url in tables:
            table, its = tables[one.url], names[one.url]
            objects = np.flatnonzero(table.sample == one.ordinal)
            place = objects[table.starts()[objects] == one.offset]  # where the field that failed is one of them
            name = its[int(place[0] if len(place) else objects[0])]
            found.append(replace(one, url=_folder(packs[one.url], its) + name, ordinal=0, offset=0))
        else:
            found.append(one)
    return found


def _table(file: ShardFile) -> Table:
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = file.ref.size_bytes
        table_bytes = min(head_bytes(os.pread(fd, HEAD_BYTES, file.data_at)), size_bytes)
        return parse(memoryview(os.pread(fd, table_bytes, file.data_at)), size_bytes)
    finally:
        os.close(fd)


def _folder(file: ShardFile, names: Sequence[str]) -> str:
    """Return what is in front of the names: a pack is called as its first object with all of that."""
    return file.ref.url.removesuffix(f"{names[0]}+{len(names) - 1}")
