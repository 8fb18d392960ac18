"""Facts that recipes need from the data, taken from the first shards in the order of the listing.

These facts are the names of fields if the user names none, the encoding of each field, and ``npy``'s dtype and
dimensions. The first shard with samples decides. For a field that this shard lacks, or holds no readable value of, the
next shard with the field decides. So the result is the same on every node and in every epoch.

A large shard is not fetched completely for this: a few MiB of it or its footer are enough (see
``tables.registry.head_conversion``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.cache.pins import with_pinned
from feedd.catalog.late_fields import known_fields
from feedd.conversion import Conversion
from feedd.dataset.object_spans import is_span
from feedd.dataset.pack_layout import is_pack
from feedd.errors import BadRequest, BadSample
from feedd.flow.tasks import run_all
from feedd.formats.format_registry import format_for
from feedd.formats.tokens import LLMC, NPY, RAW, TokenWindows
from feedd.recipe.left_out import left_out
from feedd.recipe.predecoded import PIXELS, RowsParams
from feedd.recipe.recipe import check_fields, default_fields, needs_resolve, with_encodings
from feedd.shard_index import ShardIndex
from feedd.tables.columns import strict_params, text_encoding, typed_by
from feedd.tables.registry import (
    HEAD_BYTES,
    conversion_named,
    head_conversion,
    is_columnar,
    is_delimited,
    is_head,
    is_ready,
    lists_columns,
    only_unpacks,
)
from feedd.values import FieldRecipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import TypeAlias

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.notices import Amount, NoticeKind
    from feedd.recipe.predecoded import ReadyField
    from feedd.values import ObjectRef, ShardFile

    SideTask: TypeAlias = Callable[[Sequence[FieldRecipe]], Sequence[FieldRecipe]]

_SHARDS_MAX: Final = 8
"""Shards with samples to search for a field before the data counts as lacking it."""

_SAMPLES_MAX: Final = 64
"""Samples to try per shard, if bad samples are allowed."""

_AT_ONCE_MAX: Final = 16
_PLAIN: Final = frozenset({"tar", "lmdb"})
"""Formats that store every field as a separate file, so that the encoding is known without looking."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A shard that was examined.

    Attributes:
        ref: the object that the index belongs to.
        whole: whether this object is the whole shard, not only its first samples or its metadata.
    """

    shard: int
    ref: ObjectRef
    index: ShardIndex
    whole: bool

    @property
    def has_values(self) -> bool:
        """Whether samples can be read from it; a footer only lists columns."""
        return self.whole or is_head(self.ref.conversion)


@dataclass(slots=True)
class _Search:
    """The state of a search.

    Attributes:
        left: fields that are not settled yet, by position.
        found: settled fields, by position.
        bad: the first unreadable sample that should have decided.
    """

    left: dict[int, FieldRecipe]
    found: dict[int, FieldRecipe] = field(default_factory=dict)
    bad: BadSample | None = None


class Schema:
    """The schema of one source of a listing.

    Args:
        stages: the open stages.
        catalog: knows the shards' indexes.
        view: the session's listing.
        source: number of the source.
        strict: raise if a sample that should decide cannot be read; otherwise try other samples.
        own: a shard that the session reads completely at its start; None: it reads none.

    Attributes:
        left_out: data that ``settled`` leaves out or changes, if the user named no fields.
        fields: fields of the shard that decided in ``settled``; None: the user named the fields.
        first: the first shard with samples that ``settled`` examined; None: it examined none.
    """

    def __init__(
        self,
        stages: Stages,
        catalog: DatasetCatalog,
        view: DatasetView,
        source: int,
        *,
        strict: bool,
        own: int | None = None,
    ) -> None:
        self._stages, self._catalog, self._view = stages, catalog, view
        self._shards = view.listing.shards_of(source)
        self.left_out: dict[NoticeKind, Amount] = {}
        self.fields: frozenset[str] | None = None
        self.first: Looked | None = None
        self._tries = 1 if strict else _SAMPLES_MAX
        self._own = own

    def by_name(self, fields: Sequence[FieldRecipe]) -> tuple[FieldRecipe, ...] | None:
        """Return fields with their encodings if the shards' names determine them; None: the data must be read.

        Raises:
            BadRecipe: a codec cannot read the encoding.
        """
        first = next(self._filled(), None)
        if not fields or first is None:
            return None
        plain, ready = self._plain(first)
        sources = [source for one in fields for source in one.sources]
        names = _encodings_by(self._format(first), plain, sources)
        if not all(names.keys() & set(one.sources) for one in fields):
            return None
        names |= {one.sources[0]: PIXELS for one in ready}
        nothing = np.zeros((len(names), 0), np.int64)
        none = np.zeros(0, np.int64)
        told = with_encodings(fields, ShardIndex(tuple(names), nothing, nothing, b"", none, tuple(names.values())))
        return None if any(map(needs_resolve, told)) else told

    async def settled(
        self, wanted: tuple[FieldRecipe, ...], beside: SideTask = lambda _: (), only: Sequence[str] = ()
    ) -> tuple[FieldRecipe, ...]:
        """Return recipes with all facts that only data can tell.

        Args:
            wanted: recipes of the fields; empty: all fields of the data.
            beside: returns further fields to read for the given ones; they are checked, but not returned.
            only: fields to read by default, in order; empty: all.

        Raises:
            BadRecipe: no checked shard has a field, or its codec cannot read the encoding of the first that has it.
            BadRequest: there are no samples, and they must decide.
            BadSample: the samples that should decide cannot be read; the message names the first.
            FeeddError: an error of a shard or its store, such as BadShard or NotFound.
        """
        looked: list[Looked] = []
        search, named = _Search({}), bool(wanted or only)
        async for one in self._with_samples():
            if not looked:
                wanted = wanted or _defaults(one.index, only)
                search.left = dict(enumerate((*wanted, *beside(wanted))))
            looked.append(one)
            await self._ask(one, search)
            if not search.left or len(looked) == _SHARDS_MAX:
                break
        if not wanted or (not looked and any(map(needs_resolve, wanted))):
            raise self._no_fields(looked)
        if search.left:
            first = await self.whole(looked[0].shard)
            await self._ask(first, search)
            await self._refuse(first, search)
        settled = tuple(search.found.get(place, one) for place, one in enumerate(wanted))
        if looked:
            self.first = looked[0]
            index = self.first.index
            self.left_out = left_out(index, settled, named=named)
            self.fields = None if named else known_fields(index.fields, index.unread)
        return settled

    async def _ask(self, one: Looked, search: _Search) -> None:
        """Settle the remaining fields that a shard has."""
        for place, wanted in list(search.left.items()):
            if not any(source in one.index.fields for source in wanted.sources):
                continue
            (found,) = with_encodings((wanted,), one.index)
            if needs_resolve(found):
                try:
                    found = await self._pinned(one, found)
                except BadSample as error:
                    if self._tries == 1:
                        raise
                    search.bad = search.bad or error
                    continue
            search.found[place] = found
            del search.left[place]

    async def _pinned(self, one: Looked, wanted: FieldRecipe) -> FieldRecipe:
        """Return a recipe completed by a shard's samples."""
        if not one.has_values:
            one = await self.whole(one.shard)

        async def read(files: tuple[ShardFile, ...]) -> FieldRecipe:
            (index,), _ = await self._stages.lost.without([one.index], files)
            (found,) = await self._stages.pool.resolve(files[0], index, (wanted,), self._tries)
            return found

        return await with_pinned(self._stages.cache, [one.ref], read)

    async def _refuse(self, first: Looked, search: _Search) -> None:
        """Raise the error for the fields that are left, if any.

        Raises:
            BadSample, BadRecipe, Unsupported: the reason why a field could not be settled.
        """
        if search.left and search.bad is not None:
            raise search.bad
        conversion = first.ref.conversion
        if search.left and conversion is not None and is_columnar(conversion):
            # the strict conversion raises if a wanted column cannot be a field
            strict = Conversion(conversion.name, strict_params(conversion.params))
            await self._catalog.readings.of_conversion(self._view, replace(first.ref, conversion=strict))
        for one in search.left.values():
            check_fields((one,), first.index.fields)

    async def _with_samples(self) -> AsyncIterator[Looked]:
        """Yield shards that have samples, in order; if the first have none, look at further ones in parallel."""
        shards, count = self._filled(), 1
        while some := list(itertools.islice(shards, count)):
            found = [one for one in await run_all(map(self._look, some)) if one.index.sample_count]
            for one in found:
                yield one
            count = 1 if found else min(2 * count, _AT_ONCE_MAX)

    def _filled(self) -> Iterator[int]:
        """Return the shards that are not known to be empty."""
        view = self._view
        return (shard for shard in self._shards if view.listing.sizes[shard] and view.counts.get(shard) != 0)

    async def _look(self, shard: int) -> Looked:
        """Read just enough of a shard to know its fields."""
        ref = self._view.refs[shard]
        plain, ready = self._plain(shard)
        if is_pack(ref) or is_span(ref) or ref.size_bytes <= HEAD_BYTES[0]:
            return await self.whole(shard)
        if shard == self._own and lists_columns(plain.conversion):  # else its footer is read twice
            return await self.whole(shard)
        head = head_conversion(plain.conversion, self._format(shard))
        if head is not None:
            ref = replace(plain, conversion=head)
            index = await self._catalog.readings.of_conversion(self._view, ref)
            if index.sample_count or not is_head(head):
                return Looked(shard, ref, _with_ready(index, ready), whole=False)
        return await self.whole(shard)

    async def whole(self, shard: int) -> Looked:
        """Return a shard that was read completely."""
        index = await self._catalog.index(self._view, shard)
        return Looked(shard, self._view.refs[shard], index, whole=True)

    def _plain(self, shard: int) -> tuple[ObjectRef, Sequence[ReadyField]]:
        """Return a shard without predecoded images, and the fields that are predecoded."""
        ref = self._view.refs[shard]
        if ref.conversion is None or not is_ready(ref.conversion):
            return ref, ()
        asked = msgspec.json.decode(ref.conversion.params.encode(), type=RowsParams)
        return self._view.listing.refs[shard], asked.fields

    def _format(self, shard: int) -> str:
        """Return the format of a shard that is read in place or only decompressed; empty: it is converted."""
        ref, _ = self._plain(shard)
        if ref.conversion is not None and not only_unpacks(ref.conversion):
            return ""
        named = self._view.listing.format_of(shard)
        inside = "" if ref.conversion is None else ref.conversion.params
        return inside or ("" if conversion_named(named) else named) or format_for(ref.url)

    def _no_fields(self, looked: Sequence[Looked]) -> BadRequest:
        """Return the error for data that gives no default fields."""
        first = looked[0].shard if looked else next(iter(self._shards), None)
        url = "" if first is None else self._view.refs[first].url
        if looked:
            names = ", ".join(looked[0].index.fields)[:200]
            message = f"expected field names that can be read by default, got {names or 'none'}"
            return BadRequest(message, object=url, hint="name fields=, or the format before the URL", stage="decode")
        message = "the dataset has no samples"
        return BadRequest(message, object=url, hint="name fields= if the dataset may be empty", stage="decode")


def _encodings_by(format_name: str, ref: ObjectRef, sources: Sequence[str]) -> dict[str, str]:
    """Return encodings of fields that the format or conversion determines; other encodings must be read from shards."""
    if ref.conversion is not None and is_delimited(ref.conversion):  # the types are the same for all shards
        types = typed_by(ref.conversion.params).types
        return {source: text_encoding(types[source]) for source in sources if source in types}
    kind, _, params = format_name.partition(":")
    if kind in {RAW, LLMC, NPY} and params:
        return dict.fromkeys(sources, f"{msgspec.json.decode(params, type=TokenWindows).dtype}[]")
    return dict.fromkeys(sources, "") if kind in _PLAIN and not is_pack(ref) else {}


def _defaults(index: ShardIndex, only: Sequence[str]) -> tuple[FieldRecipe, ...]:
    """Return the default recipes of a shard's fields.

    Raises:
        BadRecipe: the shard lacks one of ``only``, or has a field that cannot be read by default.
    """
    check_fields([FieldRecipe(name, (name,), "bytes") for name in only], index.fields)
    columns = [index.fields.index(name) for name in only] or range(len(index.fields))
    return default_fields([index.fields[column] for column in columns], list(map(index.encoding_of, columns)))


def _with_ready(index: ShardIndex, ready: Sequence[ReadyField]) -> ShardIndex:
    """Return an index as it will be after predecoding images, for a shard that is not predecoded yet."""
    places: dict[str, tuple[int, str]] = {
        name: (column, index.encoding_of(column)) for column, name in enumerate(index.fields)
    }
    for one in ready:
        columns = [places.pop(source)[0] for source in one.sources if source in places]
        if columns:
            places[one.sources[0]] = columns[0], PIXELS
    columns = [column for column, _ in places.values()]
    stored = tuple(stored for _, stored in places.values())
    reasons = None if index.reasons is None else index.reasons[columns]
    return index.with_fields(tuple(places), index.starts[columns], index.sizes[columns], stored, reasons)
