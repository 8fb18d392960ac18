"""What only data can tell of a recipe: a fact of the dataset, told by its first shards in the order of the listing.

Which fields there are where nobody names any, how each is stored, and ``npy``'s dtype and dimensions. The first shard
that has samples tells; of a field that it lacks, or of which it holds nothing that can be read, the next one that has
it. So what is delivered is the same on every node and in every epoch, however the run got there.

A large shard is not fetched for that: some MiB of it are, or its footer (see
``convert.conversion_registry.head_form``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.cache.pinned_reads import with_pinned
from feedd.catalog.late_fields import fields_told
from feedd.convert.columnar import stored_of, strict_params, typed_by
from feedd.convert.conversion_registry import (
    COLUMNAR,
    DELIMITED,
    HEAD,
    HEAD_BYTES,
    form_named,
    head_form,
    is_ready,
    only_unpacks,
    split,
)
from feedd.dataset.listing import format_of
from feedd.dataset.pack_layout import is_pack
from feedd.errors import BadRequest, BadSample
from feedd.flow.tasks import run_all
from feedd.formats.format_registry import format_for
from feedd.formats.tokens import LLMC, NPY, RAW, TokenWindows
from feedd.recipe.left_out import left_out
from feedd.recipe.predecoded import PIXELS, RowsParams
from feedd.recipe.recipe import as_stored, check_fields, default_fields, needs_resolve
from feedd.values import ShardIndex

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import TypeAlias

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import Listing
    from feedd.notices import Amount, NoticeKind
    from feedd.recipe.predecoded import ReadyField
    from feedd.values import FieldRecipe, ObjectRef, ShardFile

    Beside: TypeAlias = Callable[[Sequence[FieldRecipe]], Sequence[FieldRecipe]]

_SHARDS_MAX: Final = 8
"""So many shards with samples are asked for a field before it is said that the data lacks it."""

_SAMPLES_MAX: Final = 64
"""So many samples of each are tried, where bad ones are no error."""

_AT_ONCE_MAX: Final = 16
_PLAIN: Final = frozenset({"tar", "lmdb"})
"""Formats that store every field as a file of its own: nothing need be looked at to know how."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A shard that was looked at.

    Attributes:
        ref: what the index is of.
        whole: whether that is the shard, and not its first samples, or what it says of itself.
    """

    shard: int
    ref: ObjectRef
    index: ShardIndex
    whole: bool

    @property
    def has_values(self) -> bool:
        """Whether samples can be read of it; a footer tells of columns, and has none."""
        return self.whole or split(self.ref.form)[0] == HEAD


@dataclass(slots=True)
class _Search:
    """What is looked for.

    Attributes:
        left: fields nothing is known of yet, by their place.
        found: the others.
        bad: the first of the samples that should have told, and cannot be read.
    """

    left: dict[int, FieldRecipe]
    found: dict[int, FieldRecipe] = field(default_factory=dict)
    bad: BadSample | None = None


class Schema:
    """What the shards of one source of a listing hold.

    Args:
        stages: where shards are.
        shelf: what is known of them.
        listing: as the session reads it.
        source: which of them.
        strict: a sample that should tell, and cannot be read, is an error; else others are tried.

    Attributes:
        left_out: what of the data ``settled`` chose no field for, or changes, where nobody named any.
        fields: of the shard that told ``settled`` which fields there are; None: the user named them.
        first: the first shard with samples, as ``settled`` looked at it; None: none was looked at.
    """

    def __init__(self, stages: Stages, catalog: DatasetCatalog, listing: Listing, source: int, *, strict: bool) -> None:
        self._stages, self._catalog, self._listing = stages, catalog, listing
        self._shards = listing.shards_of(source)
        self.left_out: dict[NoticeKind, Amount] = {}
        self.fields: frozenset[str] | None = None
        self.first: Looked | None = None
        self._tries = 1 if strict else _SAMPLES_MAX

    def told(self, fields: Sequence[FieldRecipe]) -> tuple[FieldRecipe, ...] | None:
        """Return fields that know how they are stored, where the shards' names tell; None: data must.

        Raises:
            BadRecipe: a codec that cannot read what is stored.
        """
        first = next(self._filled(), None)
        if not fields or first is None:
            return None
        plain, ready = self._plain(first)
        sources = [source for one in fields for source in one.sources]
        names = _stored_by(self._format(first), plain, sources)
        if not all(names.keys() & set(one.sources) for one in fields):
            return None
        names |= {one.sources[0]: PIXELS for one in ready}
        nothing = np.zeros((len(names), 0), np.int64)
        none = np.zeros(0, np.int64)
        told = as_stored(fields, ShardIndex(tuple(names), nothing, nothing, b"", none, tuple(names.values())))
        return None if any(map(needs_resolve, told)) else told

    async def settled(self, wanted: tuple[FieldRecipe, ...], beside: Beside = lambda _: ()) -> tuple[FieldRecipe, ...]:
        """Return recipes with everything that only data can tell.

        Args:
            wanted: of the fields; none: those that the data has.
            beside: tells by the fields what else is read of samples: held against the data, and not returned.

        Raises:
            BadRecipe: no shard that was looked at has a field, or its codec cannot read what the first that has it
                stores.
            BadRequest: there are no samples, and they must tell.
            BadSample: those that should tell cannot be read; names the first.
            BadShard, NotFound, ...: said by a shard.
        """
        looked: list[Looked] = []
        search, named = _Search({}), bool(wanted)
        async for one in self._with_samples():
            if not looked:
                wanted = wanted or default_fields(one.index.fields, one.index.stored)
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
            self.fields = None if named else fields_told(index)
        return settled

    async def _ask(self, one: Looked, search: _Search) -> None:
        """Take what a shard tells of the fields that are left."""
        for place, wanted in list(search.left.items()):
            if not any(source in one.index.fields for source in wanted.sources):
                continue
            (found,) = as_stored((wanted,), one.index)
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
        """Return a recipe that a shard's samples have told the rest of."""
        if not one.has_values:
            one = await self.whole(one.shard)

        async def read(files: tuple[ShardFile, ...]) -> FieldRecipe:
            (index,), _ = await self._stages.lost.without([one.index], files)
            (found,) = await self._stages.pool.resolve(files[0], index, (wanted,), self._tries)
            return found

        return await with_pinned(self._stages.cache, [one.ref], read)

    async def _refuse(self, first: Looked, search: _Search) -> None:
        """Say what is wrong with the fields that are left, if any are.

        Raises:
            BadSample, BadRecipe, Unsupported: one of them.
        """
        if search.left and search.bad is not None:
            raise search.bad
        name, params = split(first.ref.form)
        if search.left and name in COLUMNAR:  # it knows what else there is, and why that is no field
            await self._catalog.readings.made(self._listing, replace(first.ref, form=f"{name}:{strict_params(params)}"))
        for one in search.left.values():
            check_fields((one,), first.index.fields)

    async def _with_samples(self) -> AsyncIterator[Looked]:
        """Yield shards that have samples, in order; where the first have none, the next are looked at side by side."""
        shards, count = self._filled(), 1
        while some := list(itertools.islice(shards, count)):
            found = [one for one in await run_all(map(self._look, some)) if one.index.sample_count]
            for one in found:
                yield one
            count = 1 if found else min(2 * count, _AT_ONCE_MAX)

    def _filled(self) -> Iterator[int]:
        """Return the shards that are not known to have no samples."""
        listing = self._listing
        return (shard for shard in self._shards if listing.sizes[shard] and listing.counts.get(shard) != 0)

    async def _look(self, shard: int) -> Looked:
        """Look at as little of a shard as tells its fields."""
        ref = self._listing.refs[shard]
        plain, ready = self._plain(shard)
        if is_pack(ref) or ref.size_bytes <= HEAD_BYTES[0]:
            return await self.whole(shard)
        form = head_form(plain.form, self._format(shard))
        if form:
            ref = replace(plain, form=form)
            index = await self._catalog.readings.made(self._listing, ref)
            if index.sample_count or split(form)[0] != HEAD:
                return Looked(shard, ref, _with_ready(index, ready), whole=False)
        return await self.whole(shard)

    async def whole(self, shard: int) -> Looked:
        """Return a shard of which all was read."""
        index = await self._catalog.index(self._listing, shard)
        return Looked(shard, self._listing.refs[shard], index, whole=True)

    def _plain(self, shard: int) -> tuple[ObjectRef, Sequence[ReadyField]]:
        """Return a shard as it is before images are made ready, and the fields whose are."""
        ref = self._listing.refs[shard]
        if not is_ready(ref.form):
            return ref, ()
        asked = msgspec.json.decode(split(ref.form)[1].encode(), type=RowsParams)
        return (self._listing.base or self._listing).refs[shard], asked.fields

    def _format(self, shard: int) -> str:
        """Return the format of a shard that lies as it is, or is only unpacked; empty: it is made."""
        ref, _ = self._plain(shard)
        form, params = split(ref.form)
        if form and not only_unpacks(form):
            return ""
        named = format_of(self._listing, shard)
        return (params if form else "") or ("" if form_named(named) else named) or format_for(ref.url)

    def _no_fields(self, looked: Sequence[Looked]) -> BadRequest:
        """Return the error for data that gives no fields by itself."""
        first = looked[0].shard if looked else next(iter(self._shards), None)
        url = "" if first is None else self._listing.refs[first].url
        if looked:
            names = ", ".join(looked[0].index.fields)[:200]
            message = f"expected names that a field can have without being asked for, got {names or 'none'}"
            return BadRequest(message, object=url, hint="name fields=, or the format before the URL", stage="decode")
        message = "expected samples in the dataset, got none"
        return BadRequest(message, object=url, hint="name fields= if that is as it should be", stage="decode")


def _stored_by(format_name: str, ref: ObjectRef, sources: Sequence[str]) -> dict[str, str]:
    """Return how those fields are stored of which format or form say it; of others shards must."""
    form, params = split(ref.form)
    if form in DELIMITED:  # their types are part of the form, the same for all shards
        types = typed_by(params).types
        return {source: stored_of(types[source]) for source in sources if source in types}
    kind, _, params = format_name.partition(":")
    if kind in {RAW, LLMC, NPY} and params:
        return dict.fromkeys(sources, f"{msgspec.json.decode(params, type=TokenWindows).dtype}[]")
    return dict.fromkeys(sources, "") if kind in _PLAIN and not is_pack(ref) else {}


def _with_ready(index: ShardIndex, ready: Sequence[ReadyField]) -> ShardIndex:
    """Return an index whose images are made ready, of a shard where they are not yet."""
    places: dict[str, tuple[int, str]] = {
        name: (column, index.stored_as(column)) for column, name in enumerate(index.fields)
    }
    for one in ready:
        columns = [places.pop(source)[0] for source in one.sources if source in places]
        if columns:
            places[one.sources[0]] = columns[0], PIXELS
    columns = [column for column, _ in places.values()]
    stored = tuple(stored for _, stored in places.values())
    return replace(index, fields=tuple(places), starts=index.starts[columns], sizes=index.sizes[columns], stored=stored)
