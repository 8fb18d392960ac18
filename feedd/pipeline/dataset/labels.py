"""Labels that come from where samples lie, or from a table beside them: as fields of indexes, like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.decode.labels import NUMBER_BYTES, NUMBER_STORED, is_label, number_at, table_of, versioned
from feedd.errors import BadRequest
from feedd.flow.lru import WeightedLru
from feedd.plan.mixed import mix_facts
from feedd.plan.objects.labels import TABLE_BYTES_MAX, folder_labels, parse_table, table_labels
from feedd.source.urls import FILE_ROOT, parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.decode.labels import TableLabel
    from feedd.pipeline.planning import Request
    from feedd.plan.listing import Listing
    from feedd.plan.objects.packs import Packs
    from feedd.source.sources import Sources
    from feedd.values import FieldRecipe, ObjectRef, ShardIndex

_LABELLED_BYTES: Final = 64 << 20


async def with_tables(sources: Sources, request: Request) -> Request:
    """Return a request whose tables are named by URL and version: another one is another dataset.

    Raises:
        NotFound, PermissionDenied, StoreUnavailable: as the store answered about a table.
    """
    files = {
        (number, table.file)
        for number, recipe in enumerate(request.wanted)
        for source in _labels(recipe)
        if (table := table_of(source)) is not None
    }
    if not files:
        return request
    refs = {one: await sources.head(_placed(request.sources[one[0]], one[1])) for one in sorted(files)}
    wanted = tuple(
        tuple(_with_versions(field, number, refs) for field in recipe) for number, recipe in enumerate(request.wanted)
    )
    return replace(request, wanted=wanted, mix=mix_facts(request.spec, wanted) if request.spec.sources else None)


async def label(sources: Sources, listing: Listing, request: Request) -> None:
    """Have a listing know the labels that a request wants; takes a microsecond or two per sample, once.

    Raises:
        BadRequest: labels that the data or the table does not tell.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered about a table.
    """
    for number, recipe in enumerate(request.wanted):
        for source in _labels(recipe):
            shards = listing.shards_of(number)
            if len(shards) and shards[0] not in listing.labels.get(source, {}):
                values = await _values(sources, listing, shards, source)
                listing.labels[source] = {**listing.labels.get(source, {}), **values}  # others may have come meanwhile


async def _values(sources: Sources, listing: Listing, shards: range, source: str) -> dict[int, NDArray[np.int64]]:
    owners = await asyncio.to_thread(_owners, listing, shards)
    packs = list(dict.fromkeys(one for one, _ in owners.values()))
    table = table_of(source)
    try:
        if table is None:  # of all sources: a folder is the same class in each, whoever asks
            packs = list(listing.packs)
            columns = await asyncio.to_thread(folder_labels, packs)
        else:
            data = await _read(sources, table)
            rows = await asyncio.to_thread(parse_table, table.file, data, table.column)
            columns = await asyncio.to_thread(table_labels, packs, rows)
    except ValueError as error:
        where = listing.refs[shards.start].url if table is None else table.file
        raise BadRequest(str(error), object=where, stage="plan") from error
    by_packs = dict(zip(packs, columns, strict=True))
    return {shard: by_packs[one][one.samples(number)] for shard, (one, number) in owners.items()}


async def _read(sources: Sources, table: TableLabel) -> bytes:
    ref = await sources.head(table.file)
    if ref.size_bytes > TABLE_BYTES_MAX:
        raise ValueError(f"expected a table of at most {TABLE_BYTES_MAX} bytes, got {ref.size_bytes}")
    data = bytearray(ref.size_bytes)
    with memoryview(data) as target:
        await sources.fetcher.fetch(replace(ref, etag=table.version), target)  # that which the fingerprint names
    return bytes(data)


def _owners(listing: Listing, shards: range) -> dict[int, tuple[Packs, int]]:
    """Return of each shard the packs it is one of, and its number there."""
    found: dict[int, tuple[Packs, int]] = {}
    for shard in shards:
        ref = listing.refs[shard]
        places = ((one, number) for one in listing.packs if (number := one.find(ref)) is not None)
        place = next(places, None)
        if place is None:
            raise BadRequest(
                "expected samples that are objects of their own, got a shard of many",
                object=ref.url,
                hint="labels by folder or table are of plain objects; a shard's samples have theirs inside",
                stage="plan",
            )
        found[shard] = place
    return found


class LabelledIndexes:
    """Indexes with the labels of their samples, made once."""

    def __init__(self) -> None:
        self._made: WeightedLru[tuple[object, ...], ShardIndex] = WeightedLru(_LABELLED_BYTES)

    def of(self, listing: Listing, shard: int, index: ShardIndex) -> ShardIndex:
        """Return the index of a shard with all labels that the listing knows."""
        columns = {name: values[shard] for name, values in listing.labels.items() if shard in values}
        if not columns:
            return index
        key = (listing.digest, listing.firsts, shard, *columns)
        made = self._made.get(key)
        if made is None:
            made = _labelled(index, columns)
            self._made.put(key, made, made.starts.nbytes + made.sizes.nbytes)
        return made


def _labelled(index: ShardIndex, columns: Mapping[str, NDArray[np.int64]]) -> ShardIndex:
    starts = np.vstack([index.starts, *(number_at(values) for values in columns.values())])
    sizes = np.vstack([index.sizes, np.full((len(columns), index.sample_count), NUMBER_BYTES, np.int64)])
    stored = (*(index.stored or ("",) * len(index.fields)), *(NUMBER_STORED,) * len(columns))
    return replace(index, fields=(*index.fields, *columns), starts=starts, sizes=sizes, stored=stored)


def _labels(recipe: Sequence[FieldRecipe]) -> list[str]:
    return [source for field in recipe for source in field.sources if is_label(source)]


def _with_versions(field: FieldRecipe, number: int, refs: Mapping[tuple[int, str], ObjectRef]) -> FieldRecipe:
    sources = [
        source if (table := table_of(source)) is None else versioned(table, refs[number, table.file])
        for source in field.sources
    ]
    return replace(field, sources=tuple(sources))


def _placed(urls: Sequence[str], file: str) -> str:
    """Return the URL of a table: relative to the folder of a dataset's first."""
    if "://" in file or file.startswith("/"):
        return file
    location = parse_url(urls[0])
    folder = location.key + "/" if location.root == FILE_ROOT else location.key[: location.key.rfind("/") + 1]
    return f"{location.root}{'' if location.root == FILE_ROOT else '/'}{folder}{file}"
