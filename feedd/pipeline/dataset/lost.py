"""Objects of packs by their own names: those that did not come, so that samples are bad; those of bad samples."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.errors import CacheUnavailable
from feedd.flow.lru import WeightedLru
from feedd.plan.objects.kinds import split_name
from feedd.plan.objects.layout import HEAD_BYTES, head_bytes, is_pack, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.pipeline.batches.failures import Failure
    from feedd.plan.objects.layout import Table
    from feedd.values import ObjectRef, ShardFile, ShardIndex

_KNOWN_MAX: Final = 1 << 16  # packs

Reasons = dict[int, dict[int, tuple[str, str]]]
"""By the number of the shard and of the sample: the extension of what is lost, and what to say of it."""


class _Version(NamedTuple):
    """One fill of an entry: what is fetched again may come whole."""

    ref: ObjectRef
    inode: int
    changed_ns: int


class _Lost(NamedTuple):
    sample: int
    extension: str
    reason: str


class LostObjects:
    """What packs in the cache say that they lack; each is asked once."""

    def __init__(self) -> None:
        self._known: WeightedLru[_Version, tuple[_Lost, ...]] = WeightedLru(_KNOWN_MAX)
        self._lacking: dict[ObjectRef, None] = {}

    def taken(self) -> list[ObjectRef]:
        """Return the packs found to lack objects since this was asked last: what was lost may be back."""
        found = list(self._lacking)
        self._lacking.clear()
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
        packs = {number: file for number, file in enumerate(files) if is_pack(file.ref) and not file.arriving}
        for (number, file), lost in zip(packs.items(), await self._of(list(packs.values())), strict=True):
            if lost:
                if len(self._lacking) < _KNOWN_MAX:
                    self._lacking[file.ref] = None
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
            return await asyncio.to_thread(_told, failures, packs)
        except (OSError, ValueError) as error:
            raise CacheUnavailable(f"expected packs, got {error}", object=failures[0].url, stage="decode") from error

    async def _of(self, files: Sequence[ShardFile]) -> list[tuple[_Lost, ...]]:
        versions = [_version(file) for file in files]
        known = [self._known.get(version) for version in versions]
        unknown = [number for number, one in enumerate(known) if one is None]
        if unknown:  # a turn through a thread for all of them: an epoch's first batches have many
            read = await asyncio.to_thread(lambda: [_read(files[number]) for number in unknown])
            for number, lost in zip(unknown, read, strict=True):
                self._known.put(versions[number], lost, 1)
                known[number] = lost
        return [one or () for one in known]


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
