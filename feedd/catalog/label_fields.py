"""Labels from folders, or from a table beside the samples, as fields of indexes like any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.access import EVERYTHING, FILE_ROOT
from feedd.catalog.urls import parse_url
from feedd.dataset.object_labels import TABLE_BYTES_MAX, UNLABELLED, folder_labels, parse_table, table_labels
from feedd.errors import BadRequest, FeeddError, StoreUnavailable
from feedd.flow.lru import WeightedLru
from feedd.flow.pools import CPU
from feedd.ordering.mixed_reader import mix_facts
from feedd.recipe.bad_sample_policy import BadSamples
from feedd.recipe.label_recipes import (
    NUMBER_BYTES,
    NUMBER_STORED,
    classes_of,
    is_label,
    number_at,
    table_of,
    unlabelled,
    versioned,
)
from feedd.recipe.params import params_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.open_request import Request
    from feedd.catalog.sources import Sources
    from feedd.dataset.listing import Listing
    from feedd.dataset.object_labels import Labels, LabelTable
    from feedd.dataset.packs import Packs
    from feedd.recipe.label_recipes import TableLabel
    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe, ObjectRef

    Tables = Mapping[str, LabelTable]

_LABELLED_BYTES: Final = 64 << 20
_NAMES_CHARS: Final = 64 << 20
_TABLES_USED: Final = 1024
_ROWS_HINT: Final = "rows are matched by path below the URL's folder"


async def with_tables(sources: Sources, request: Request) -> Request:
    """Return a request whose tables are named by URL and version: another version makes another dataset.

    Raises:
        NotFound, PermissionDenied, StoreUnavailable: the store's answer about a table.
    """
    files = {
        (number, table.file)
        for number, recipe in enumerate(request.wanted)
        for source in _labels(recipe)
        if (table := table_of(source)) is not None
    }
    if not files:
        return request
    refs = {one: await sources.head(_placed(request.sources[one[0]], one[1]), request.access) for one in sorted(files)}
    wanted = tuple(
        tuple(_with_versions(field, number, refs) for field in recipe) for number, recipe in enumerate(request.wanted)
    )
    spec = request.spec
    return replace(
        request, wanted=wanted, mix=mix_facts(spec.order, spec.data.sources, wanted) if spec.data.sources else None
    )


class Labelling:
    """Labels of listings, and the class names of their numbers."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: WeightedLru[tuple[bytes, tuple[int, ...], int, str], _Known] = WeightedLru(_NAMES_CHARS)
        self._used: WeightedLru[str, bool] = WeightedLru(_TABLES_USED)

    async def tables(self, request: Request) -> Tables:
        """Read the tables of a request that no earlier request has used, while objects are being listed.

        A table that cannot be read is skipped here; ``label`` reports the error.

        Raises:
            StoreUnavailable: the store did not answer about a table.
        """
        sources = dict.fromkeys(source for recipe in request.wanted for source in _labels(recipe))
        found: dict[str, LabelTable] = {}
        for source in sources:
            table = table_of(source)
            if table is not None and not self._used.get(source):
                try:
                    found[source] = await _rows(self._sources, table)
                except StoreUnavailable:
                    raise  # all allowed retries have failed, so do not try again in ``label``
                except (FeeddError, ValueError):
                    continue
        return found

    async def label(self, listing: Listing, request: Request, tables: Tables) -> dict[str, tuple[str, ...]]:
        """Add the labels that a request wants to a listing; takes 1 to 2 microseconds per sample, once.

        Args:
            listing: listing of the request's objects.
            request: names the labels.
            tables: its tables, as far as they were read in advance.

        Returns:
            Class names in the order of their numbers, by field, for fields whose labels are names.

        Raises:
            BadRequest: all samples lack a label, or one does and no bad samples are allowed. Or tables of several
                sources number the names differently.
            NotFound, PermissionDenied, StoreUnavailable: the store's answer about a table.
        """
        found: dict[str, tuple[str, ...]] = {}
        for number, recipe in enumerate(request.wanted):
            shards = listing.shards_of(number)
            for field in recipe if len(shards) else ():
                url = listing.refs[shards.start].url
                classes = getattr(params_of(field), "classes", ())
                for source in filter(is_label, field.sources):
                    known = await self._of(listing, shards, source, tables.get(source))
                    _check_labelled(known, url, source, request)
                    classes = known.classes
                if found.setdefault(field.name, classes) != classes:
                    raise _disagree(field.name, url)
        return {name: classes for name, classes in found.items() if classes}

    async def _of(self, listing: Listing, shards: range, source: str, rows: LabelTable | None) -> _Known:
        key = (listing.digest, listing.firsts, shards.start, source)
        known = self._known.get(key)
        if known is None or shards[0] not in listing.labels.get(source, {}):
            values, known = await _values(self._sources, listing, shards, source, rows)
            listing.labels[source] = {**listing.labels.get(source, {}), **values}  # others may have come meanwhile
            self._known.put(key, known, sum(map(len, known.classes), 64))
            self._used.put(source, True, 1)  # noqa: FBT003 - a value, not a flag
        return known


class _Known(NamedTuple):
    """Facts about a column of labels.

    Attributes:
        classes: see ``dataset.object_labels.Labels``.
        missing: number of samples without a label.
        first_missing: the first of these samples.
        total: number of samples.
    """

    classes: tuple[str, ...]
    missing: int
    first_missing: str
    total: int


async def _values(
    sources: Sources, listing: Listing, shards: range, source: str, rows: LabelTable | None
) -> tuple[dict[int, NDArray[np.int64]], _Known]:
    owners = await CPU.run(_owners, listing, shards)
    packs = list(dict.fromkeys(one for one, _ in owners.values()))
    table = table_of(source)
    try:
        if table is None:  # number the folders of all sources together, so that a name is the same class in each
            packs = list(listing.packs)
            labels = await CPU.run(folder_labels, packs, classes_of(source))
        else:
            labels = await _table_labels(sources, packs, table, rows)
    except ValueError as error:
        where = listing.refs[shards.start].url if table is None else table.file
        raise BadRequest(str(error), object=where, stage="plan") from error
    by_packs = dict(zip(packs, labels.values, strict=True))
    values = {shard: by_packs[one][one.samples(number)] for shard, (one, number) in owners.items()}
    return values, _Known(labels.classes, labels.missing, labels.first_missing, sum(map(len, labels.values)))


async def _table_labels(sources: Sources, packs: Sequence[Packs], table: TableLabel, rows: LabelTable | None) -> Labels:
    if rows is not None:  # read in advance, and freed by the caller
        return await CPU.run(table_labels, packs, rows)
    rows = await _rows(sources, table)
    try:
        return await CPU.run(table_labels, packs, rows)
    finally:
        await CPU.run(rows.clear)


async def forget(tables: Tables) -> None:
    """Free tables that were read in advance; they must not be used any more."""
    for table in tables.values():
        await CPU.run(table.clear)


def _check_labelled(known: _Known, url: str, source: str, request: Request) -> None:
    """Refuse at once labels that would end the run later: all are missing, or one is and no bad samples are allowed.

    If there are filters, they may leave out samples without a label, so such samples are reported later.
    """
    strict = not request.filters and (request.policy is BadSamples.ERROR or not request.spec.data.bad_samples_max)
    if not known.missing or (known.missing < known.total and not strict):
        return
    table = table_of(source)
    others = f" and {known.missing - 1} others of {known.total}" if known.missing > 1 else ""
    some = known.missing < known.total
    raise BadRequest(
        f"expected a label for every sample, got none for {known.first_missing!r}{others}: {unlabelled(source)}",
        object=url if table is None else table.file,
        hint="pass bad_samples='skip' to leave them out" if some else _ROWS_HINT if table is not None else "",
        stage="plan",
    )


def _disagree(name: str, url: str) -> BadRequest:
    return BadRequest(
        "expected the same classes in all mixed datasets, got other classes in one",
        object=url,
        hint=f'list the classes of {name!r} in fields, in their order: "classes": ["cat", "dog"]',
        stage="plan",
    )


async def _rows(sources: Sources, table: TableLabel) -> LabelTable:
    ref = await sources.head(table.file, EVERYTHING)  # ``with_tables`` has checked that the caller may read it
    if ref.size_bytes > TABLE_BYTES_MAX:
        raise ValueError(f"expected a table of at most {TABLE_BYTES_MAX} bytes, got {ref.size_bytes}")
    ref = replace(ref, etag=table.version)  # the version in the fingerprint
    return await sources.texts.parse(ref, lambda data: parse_table(table.file, data, table.column, table.classes))


def _owners(listing: Listing, shards: range) -> dict[int, tuple[Packs, int]]:
    """Return the packs that each shard belongs to, and the shard's number there."""
    found: dict[int, tuple[Packs, int]] = {}
    for shard in shards:
        ref = listing.refs[shard]
        places = ((one, number) for one in listing.packs if (number := one.find(ref)) is not None)
        place = next(places, None)
        if place is None or place[0].has_texts:
            got = "a shard of many samples" if place is None else "lines of a manifest"
            raise BadRequest(
                f"expected samples that are separate objects, got {got}",
                object=ref.url,
                hint="labels by folder or table are for separate objects; a shard's samples contain their labels, "
                'as int, str or {"decode": "int", "classes": ["cat", "dog"]}',
                stage="plan",
            )
        found[shard] = place
    return found


class LabelledIndexes:
    """Indexes with label columns added, each built once."""

    def __init__(self) -> None:
        self._with_labels: WeightedLru[tuple[object, ...], ShardIndex] = WeightedLru(_LABELLED_BYTES)

    def of(self, listing: Listing, shard: int, index: ShardIndex) -> ShardIndex:
        """Return the index of a shard with all labels that the listing knows."""
        columns = {name: values[shard] for name, values in listing.labels.items() if shard in values}
        if not columns:
            return index
        key = (listing.digest, listing.firsts, shard, *columns)
        made = self._with_labels.get(key)
        if made is None:
            made = _labelled(index, columns)
            self._with_labels.put(key, made, made.starts.nbytes + made.sizes.nbytes)
        return made


def _labelled(index: ShardIndex, columns: Mapping[str, NDArray[np.int64]]) -> ShardIndex:
    known = [values != UNLABELLED for values in columns.values()]
    numbers = [np.where(one, values, 0) for one, values in zip(known, columns.values(), strict=True)]
    starts = np.vstack([index.starts, *map(number_at, numbers)])
    sizes = np.vstack([index.sizes, *(np.where(one, np.int64(NUMBER_BYTES), np.int64(-1)) for one in known)])
    stored = (*(index.encodings or ("",) * len(index.fields)), *(NUMBER_STORED,) * len(columns))
    fields, reasons = (*index.fields, *columns), index.reasons
    if reasons is not None:
        reasons = np.vstack([reasons, np.zeros((len(columns), index.sample_count), np.uint8)])
    return index.with_fields(fields, starts, sizes, stored, reasons)


def _labels(recipe: Sequence[FieldRecipe]) -> list[str]:
    return [source for field in recipe for source in field.sources if is_label(source)]


def _with_versions(field: FieldRecipe, number: int, refs: Mapping[tuple[int, str], ObjectRef]) -> FieldRecipe:
    sources = [
        source if (table := table_of(source)) is None else versioned(table, refs[number, table.file])
        for source in field.sources
    ]
    return replace(field, sources=tuple(sources))


def _placed(urls: Sequence[str], file: str) -> str:
    """Return the URL of a table: a relative path starts at the folder of the dataset's first URL."""
    if "://" in file or file.startswith("/"):
        return file
    location = parse_url(urls[0])
    folder = location.key + "/" if location.root == FILE_ROOT else location.key[: location.key.rfind("/") + 1]
    return f"{location.root}{'' if location.root == FILE_ROOT else '/'}{folder}{file}"
